package browsertest_test

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// startSignup builds and starts examples/signup, and returns the URL of its page.
func startSignup(t *testing.T) (url string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "signup")
	build := exec.Command("go", "build", "-C", "../../examples", "-o", program, "./signup")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // for a port that is free, and stays the same after the kill
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	cmd := exec.Command(program, "-addr", listener.Addr().String())
	cmd.Env = append(os.Environ(), "OUTBOX_DATABASE_URL="+pgtest.Database(t))
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("signup: %v", err)
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if address, found := strings.CutPrefix(lines.Text(), "open "); found {
			go func() {
				for lines.Scan() {
				}
			}()
			return address
		}
	}
	t.Fatal("it serves no page")
	return ""
}

// The button kills the process that serves the page. The page says so, and shows by itself that the
// next process sends the mail. It fits its window before, meanwhile and afterwards.
func TestTheExampleShowsThatAKillLosesNoTask(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	path := needs.Program(t, "chromium", needs.Browsers...)
	b := openBrowser(t, path, "net::ERR_", "409 (Conflict)") // no process serves; an address is taken
	b.url = startSignup(t)
	b.open("")
	b.awaitText("no mail yet")
	b.setTheme("light")
	b.fits("signup-empty", "light")
	process := b.evaluate(`document.getElementById("life").textContent.match(/\d+/)[0]`)
	b.do(chromedp.SendKeys(chromedp.CSS("input"), "ada@example.com"))
	b.click(".kill", "Process "+process+" is dead.")
	b.fits("signup-down", "light")
	b.awaitText("Process " + process + " was killed.")
	b.awaitText("credit 5.00")
	b.awaitText("sent by process")
	if sender := b.evaluate(`document.querySelector("#mails").innerText.match(/process (\d+)/)[1]`); sender == process {
		t.Errorf("process %s sent a mail after its death", process)
	}
	b.do(chromedp.SendKeys(chromedp.CSS("input"), "bob@full.example"))
	b.do(chromedp.Click(chromedp.CSS("form button:not(.kill)")))
	b.awaitText("bob@full.example")
	b.await(`document.querySelector("#tasks .leased") !== null`, "the mail on its way")
	b.await(`document.querySelector("#tasks .dead") !== null`, "a dead letter")
	b.do(chromedp.SendKeys(chromedp.CSS("input"), "bob@full.example"))
	b.click("form button:not(.kill)", "this e-mail address is signed up already")
	for _, theme := range []string{"light", "dark"} {
		b.setTheme(theme)
		b.fits("signup", theme)
	}
}
