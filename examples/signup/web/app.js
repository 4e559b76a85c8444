"use strict";
// Keeps the two lists of the page up to date. Without it the page works too, but has to be reloaded.

const cents = (n) => (n / 100).toFixed(2);

function element(tag, text) {
  const e = document.createElement(tag);
  e.textContent = text; // never innerHTML: the text is other people's
  return e;
}

function userItem(user) {
  const li = element("li", user.email + " ");
  li.append(element("small", "credit " + cents(user.credit_cents)));
  return li;
}

function mailItem(mail) {
  const li = document.createElement("li");
  li.append(element("strong", mail.subject), " to " + mail.to, element("p", mail.text));
  return li;
}

const shown = {};

async function update(name, item) {
  const list = document.getElementById(name);
  if (!list) return; // no inbox, since mails go elsewhere
  const response = await fetch(`/api/${name}?limit=20`);
  const text = await response.text();
  if (!response.ok || text === shown[name]) return;
  shown[name] = text;
  const rows = JSON.parse(text);
  if (rows.length > 0) list.replaceChildren(...rows.map(item));
}

async function poll() {
  try {
    await Promise.all([update("users", userItem), update("mails", mailItem)]);
  } catch {
    // the server is away; the next round may find it again
  }
  setTimeout(poll, 300);
}

poll();
