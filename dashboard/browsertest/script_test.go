package browsertest_test

import (
	"database/sql"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/gorilla/csrf"
	"github.com/justinas/nosurf"

	"github.com/txoutbox/outbox/internal/testing/dashboardtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// With script the question of a bulk action is a dialog that Escape closes. The action sends request
// after request, and leaves the focus on the link back.
func TestABulkActionGoesOnByItself(t *testing.T) {
	t.Parallel()
	b, db := openDashboard(t, "ada@example.com", func(t testing.TB, db *sql.DB) {
		dashboardtest.Bury(t, db, "BULK", "attempts", "connection refused", 1, 3500)
	})
	db.Do(t, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1.2); RETURN NULL; END $$;
		CREATE TRIGGER slow AFTER DELETE ON outbox.dead_task
		FOR EACH STATEMENT EXECUTE FUNCTION slow()`) // two transactions a request
	b.open("dead")
	b.do(chromedp.SetJavascriptAttribute(chromedp.CSS("#f-type"), "value", "BULK"))
	b.do(chromedp.SendKeys(chromedp.CSS("#f-error"), "refused"))
	b.click(".filter button", "of type BULK")
	b.click("#bulk-redrive", "3,500 dead letters")
	b.await(`document.querySelector("dialog").open`, "the dialog")
	b.do(chromedp.KeyEvent("\x1b"))
	b.await(`!document.querySelector("dialog").open && !document.querySelector("#confirm")`, "the end of the dialog")
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 3500 {
		t.Errorf("%d dead letters are left, want 3500", n)
	}
	b.click("#bulk-redrive", "3,500 dead letters")
	b.click("#confirm", "It goes on for as long as this page is open.")
	// A busy server may have had no time to count all before.
	b.await(`/3,500( of 3,500)? redriven/.test(document.body.innerText)`, "all to be redriven")
	b.await(`document.activeElement.id === "back"`, "the focus on the link back")
	b.click("#back", "No dead letter matches.")
}

// The dialog says what is missing, and sends nothing without it. The payload of a task is changed in a
// plain form.
func TestADialogAsksForTheTimeOfATask(t *testing.T) {
	t.Parallel()
	b, db := openDashboard(t, "ada@example.com", func(t testing.TB, db *sql.DB) {
		dashboardtest.Bury(t, db, "BULK", "attempts", "connection refused", 900, 1)
	})
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'LATER' FROM generate_series(1, 3)`)
	b.open("tasks?type=LATER&state=ready")
	b.click("#bulk-reschedule", "3 tasks")
	b.await(`document.querySelector("dialog").open`, "the dialog")
	b.click("#confirm", "3 tasks")
	b.await(`document.activeElement.id === "bulk-value"`, "the focus on the field that is empty")
	b.do(chromedp.SetJavascriptAttribute(chromedp.CSS("#bulk-value"), "value", "2031-01-02T03:04"))
	b.click("#confirm", "3 of 3 rescheduled")
	b.await(`document.activeElement.id === "back"`, "the focus on the link back")
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE run_at = '2031-01-02 03:04Z'`); n != 3 {
		t.Errorf("%d tasks were rescheduled, want 3", n)
	}
	b.click("#back", "No task matches.")

	b.open("task?id=900&payload=show")
	b.click("#edit-payload", "Its keys stay as they are.")
	b.do(chromedp.SetJavascriptAttribute(chromedp.CSS("#new-payload"), "value", `{"user_id": 7}`))
	b.click("#set-payload", "The payload is changed.")
	if got := db.Text(t, `SELECT payload::text FROM outbox.dead_task`); got != `{"user_id": 7}` {
		t.Errorf("the payload is %s", got)
	}
}

// Over plain http browsers have fewer headers and cookies, and say so in the console.
func TestADashboardOverPlainHTTPSaysNothingInTheConsole(t *testing.T) {
	t.Parallel()
	b, _ := openDashboard(t, "ada@example.com", dashboardtest.Fill)
	b.url = strings.Replace(b.url, "127.0.0.1", plainHost, 1)
	for _, path := range []string{"", "type?name=SEND_WELCOME", "task?id=900001&payload=show", "schedules", "relays", "audit"} {
		b.open(path)
		if b.evaluate(`isSecureContext`) != "false" {
			t.Fatal("the browser trusts the page")
		}
	}
	b.do(chromedp.Click(chromedp.CSS(".switch button")))
	b.await(`document.readyState === "complete" && document.querySelector(".switch button").value === "on"`, "the setting")
	b.open("dead")
	b.click("#bulk-redrive", "53 dead letters")
	b.click("#confirm", "53 of 53 redriven")
}

func TestThePageSearchesOnByItself(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	b, db := openDashboard(t, "ada@example.com", func(t testing.TB, db *sql.DB) {
		dashboardtest.Bury(t, db, "MAIL", "attempts", "boom", 1, 35_000)
	})
	db.Do(t, `UPDATE outbox.dead_task SET last_error = 'a rare one' WHERE task_id = 35000`)
	b.open("dead")
	b.do(chromedp.SendKeys(chromedp.CSS("#f-error"), "rare"))
	b.click(".filter button", "a rare one")
	b.await(`document.querySelector("#task-35000") !== null`, "the oldest dead letter")
	b.do(chromedp.SendKeys(chromedp.CSS("#f-error"), " none"))
	b.click(".filter button", "No further dead letter matches.")
}

// What changes appears by itself, with the focus where it was; the switch stops it. A chart shows
// the value under the focus, and those that the arrow keys go to.
func TestPagesKeepThemselvesUpToDate(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	b, db := openDashboard(t, "ada@example.com", dashboardtest.Fill)
	b.open("")
	b.awaitText("Task types")
	const svg = `document.querySelectorAll(".chart svg")[2]` // tasks that are ready
	shows := func(want string) {
		t.Helper()
		got := b.evaluate(svg + `.parentElement.querySelector("output").textContent`)
		if !strings.HasSuffix(got, " UTC: "+want) {
			t.Errorf("the chart shows %q, want %s", got, want)
		}
	}
	b.do(chromedp.KeyEvent("\t")) // the window has the focus
	b.evaluate(svg + `.focus()`)
	shows("1,975")
	b.do(chromedp.KeyEvent(kb.ArrowLeft))
	shows(b.evaluate(svg + `.dataset.values.split(" ").at(-2)`))
	b.evaluate(`window.stays = true`)
	b.do(chromedp.Focus(chromedp.CSS(`a[href="./type?name=SEND_WELCOME"]`)))
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'SEND_WELCOME' FROM generate_series(1, 1000)`)
	b.await(`document.querySelector("#tiles").innerText.includes("2,975")`, "the tiles")
	if got := b.evaluate(`window.stays + document.activeElement.getAttribute("href")`); got != "true./type?name=SEND_WELCOME" {
		t.Errorf("the page was loaded again, or the focus is lost: %s", got)
	}

	// A task that becomes due while its page is open: Cancel stays where it is.
	later := strconv.Itoa(db.Int(t, `SELECT max(task_id) FROM outbox.task WHERE task_type = 'REINDEX_SEARCH'`))
	b.open("task?id=" + later)
	b.await(`document.querySelector("#run-now") !== null`, "run now")
	const place = `(r => [r.left, r.top, r.width].join(" "))(document.getElementById("cancel").getBoundingClientRect())`
	before := b.evaluate(place)
	db.Do(t, `UPDATE outbox.task SET state = 'ready', run_at = now() WHERE task_id = $1`, later)
	b.await(`document.querySelector("#run-now") === null`, "run now is off")
	if got := b.evaluate(place); got != before {
		t.Errorf("Cancel is at %s, and was at %s", got, before)
	}
	b.do(chromedp.Click(chromedp.CSS(`button[name="updates"]`)))
	b.await(`document.querySelector('button[name="updates"]').getAttribute("aria-pressed") === "false"`, "the switch")
	if got := b.evaluate(`document.querySelectorAll("[hx-trigger]").length + location.pathname`); got != "0/outbox/task" {
		t.Errorf("updates are off, and the page is %s", got)
	}
}

// A button is a plain form, and a bulk action is a form that a script sends.
func TestButtonsWorkInsideTheAppsProtectionAgainstCSRF(t *testing.T) {
	needs.CI(t)
	for name, p := range map[string]struct {
		around func(http.Handler) http.Handler
		field  func(*http.Request) (name, value string)
	}{
		"gorilla/csrf": {
			func(next http.Handler) http.Handler {
				protected := csrf.Protect([]byte("a key of thirty-two bytes, always"[:32]), csrf.Secure(false),
					csrf.Path("/"))(next)
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					protected.ServeHTTP(w, csrf.PlaintextHTTPRequest(r))
				})
			},
			func(r *http.Request) (string, string) { return "gorilla.csrf.Token", csrf.Token(r) },
		},
		"nosurf": {
			func(next http.Handler) http.Handler {
				protected := nosurf.New(next)
				protected.SetIsTLSFunc(func(*http.Request) bool { return false })
				return protected
			},
			func(r *http.Request) (string, string) { return nosurf.FormFieldName, nosurf.Token(r) },
		},
		"net/http": {http.NewCrossOriginProtection().Handler, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b, db := openDashboard(t, "ada@example.com", func(t testing.TB, db *sql.DB) {
				dashboardtest.Bury(t, db, "BULK", "attempts", "connection refused", 1, 3)
			})
			b.url = serve(t, db, "ada@example.com", p.around, p.field)
			b.open("type?name=BULK")
			b.click(`form[action="./pause"] button`, "The type is paused.")
			b.open("dead")
			b.click("#bulk-redrive", "3 dead letters")
			b.click("#confirm", "3 of 3 redriven")
		})
	}
}
