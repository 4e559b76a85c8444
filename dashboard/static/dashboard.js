// What pages do beyond htmx. Without this file their links lead to pages that ask, and a chart
// shows its peak and its last value.
"use strict";

// A question opens as a dialog: htmx loads it into #ask. Escape and its link back close it. What
// was begun in it is on the page after a reload.
const ask = () => document.getElementById("ask");

document.addEventListener("htmx:afterSettle", e => {
  if (e.detail.target !== ask() || ask().open) return;
  ask().autofocus = true; // not its first button: Enter would confirm
  ask().showModal();
});
document.addEventListener("htmx:beforeOnLoad", e => {
  if (e.detail.target === ask() && e.detail.xhr.getResponseHeader("HX-Reswap")) { // it is an error's page
    e.preventDefault();
    location.assign(e.detail.elt.href);
  }
});
// An answer that is no page of the dashboard, as of the app's protection against CSRF, is shown as
// without script.
document.addEventListener("htmx:responseError", e => { if (e.detail.elt.matches("form")) e.detail.elt.submit(); });
document.addEventListener("click", e => {
  if (ask().open && e.target.closest("#ask [data-close]")) {
    e.preventDefault();
    ask().close();
  }
});
document.addEventListener("close", e => { // it does not bubble
  if (e.target !== ask()) return;
  if (ask().querySelector("[data-begun]")) location.reload();
  ask().replaceChildren();
}, true);

// A chart shows a value and its time: the one under the pointer, or with the focus the last one and
// those that the arrow keys go to.
let chart, index;

function show(svg, i) {
  const values = svg.dataset.values.split(" "), xs = xsOf(svg);
  hide();
  chart = svg;
  index = Math.min(Math.max(i, 0), xs.length - 1);
  const at = new Date(1000 * (svg.dataset.now - svg.dataset.span * (1 - xs[index] / 240)));
  svg.querySelector(".cursor").setAttribute("d", `M${xs[index]} 0V48`);
  svg.parentElement.querySelector("output").textContent = `${at.toISOString().slice(11, 16)} UTC: ${values[index]}${svg.dataset.unit}`;
}

function hide() {
  if (!chart) return;
  chart.querySelector(".cursor").setAttribute("d", "M0 0");
  chart.parentElement.querySelector("output").textContent = "";
  chart = undefined;
}

const xsOf = svg => Array.from(svg.querySelector(".line").getAttribute("d").matchAll(/[ML]([\d.]+)/g), m => +m[1]);
const chartOf = e => e.target.closest?.("svg[data-values]");
const focused = () => document.activeElement?.closest("svg[data-values]");

document.addEventListener("pointermove", e => {
  const svg = chartOf(e);
  if (!svg) {
    if (chart && chart !== focused()) hide();
    return;
  }
  const place = svg.getBoundingClientRect(), x = (e.clientX - place.left) / place.width * 240;
  const far = xsOf(svg).map(at => Math.abs(at - x));
  show(svg, far.indexOf(Math.min(...far)));
});
document.addEventListener("focusin", e => { if (chartOf(e)) show(chartOf(e), Infinity); });
document.addEventListener("focusout", e => { if (chartOf(e)) hide(); });
document.addEventListener("keydown", e => {
  const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: Infinity }[e.key];
  if (chartOf(e) && chart && to !== undefined) {
    e.preventDefault();
    show(chart, to);
  }
});
document.addEventListener("htmx:afterSwap", () => { if (chart) chart.isConnected ? show(chart, index) : chart = undefined; }); // it has new values
