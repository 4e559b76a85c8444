package outboxtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
)

type addressV1 struct {
	ZIP string `json:"zip"`
}

type welcomeV1 struct {
	Email   string    `json:"email" outbox:"required"`
	Age     int       `json:"age"`
	Address addressV1 `json:"address"`
}

// Golden writes the shape of payloads, lets optional fields come, and fails where stored tasks would
// lose what they say.
func TestGoldenFailsWhereADeployBreaksStoredTasks(t *testing.T) {
	t.Chdir(t.TempDir())
	const name = "users/SEND WELCOME"
	file := filepath.Join("testdata", "outbox", "users%2FSEND+WELCOME.golden")
	read := func() string {
		t.Helper()
		b, err := os.ReadFile(file)
		relaytest.Must(err)
		return string(b)
	}
	outboxtest.Golden(t, outbox.NewTaskType[welcomeV1](name), outbox.NewTaskType[int]("OTHER"))
	want := "# Payloads of users/SEND WELCOME, as outboxtest.Golden knows them: path, type, and whether it is required.\n" +
		".\tobject\naddress\tobject\naddress.zip\tstring\nage\tint64\nemail\tstring\trequired\n"
	if got := read(); got != want {
		t.Errorf("it wrote\n%s\nwant\n%s", got, want)
	}

	type grown struct {
		welcomeV1
		Name string `json:"name,omitempty"`
	}
	outboxtest.Golden(t, outbox.NewTaskType[grown](name))
	if got := read(); got != want+"name\tstring\n" {
		t.Errorf("it wrote\n%s\nwant a line for name", got)
	}
	grownFile := read()

	type renamed struct {
		EmailAddress string `json:"email_address" outbox:"required"`
		Age          string `json:"age"`
		Address      struct {
			Zipcode string `json:"zipcode"`
		} `json:"address"`
	}
	broken := outbox.NewTaskType[renamed](name)
	got := failing(t, func(t testing.TB) { outboxtest.Golden(t, outbox.NewTaskType[string]("NEW"), broken) })
	for _, want := range []string{
		"users/SEND WELCOME: email (string) is gone", "age was int64 and is string", "address.zip (string) is gone", "name (string) is gone",
		"email_address is new and required", "two deploys", "OUTBOX_UPDATE_GOLDEN=1",
	} {
		wantFatal(t, got, want)
	}
	if read() != grownFile {
		t.Error("the file has changed, though the test failed")
	}
	t.Setenv("OUTBOX_UPDATE_GOLDEN", "1")
	outboxtest.Golden(t, broken)
	t.Setenv("OUTBOX_UPDATE_GOLDEN", "")
	outboxtest.Golden(t, broken)
	if !strings.Contains(read(), "address.zipcode") {
		t.Errorf("it was not updated: %s", read())
	}

	type typo struct {
		A int `outbox:"requierd"`
	}
	wantFatal(t, failing(t, func(t testing.TB) {
		outboxtest.Golden(t, outbox.NewTaskType[typo]("TYPO"))
	}), `has the tag outbox:"requierd"`)
	relaytest.Must(os.WriteFile(file, []byte("<<<<<<< HEAD\n"), 0o600))
	wantFatal(t, failing(t, func(t testing.TB) { outboxtest.Golden(t, broken) }), "line 1 is not a path")
}

// A checkout may have other ends of lines, and names of files without colons and the like.
func TestGoldenWorksWithCheckoutsOfWindows(t *testing.T) {
	t.Chdir(t.TempDir())
	one := outbox.NewTaskType[welcomeV1]("email:welcome")
	outboxtest.Golden(t, one)
	file := filepath.Join("testdata", "outbox", "email%3Awelcome.golden")
	written, err := os.ReadFile(file)
	relaytest.Must(err)
	crlf := strings.ReplaceAll(string(written), "\n", "\r\n")
	relaytest.Must(os.WriteFile(file, []byte(crlf), 0o600))
	outboxtest.Golden(t, one)
	if now, _ := os.ReadFile(file); string(now) != crlf {
		t.Errorf("it wrote a file that had changed in nothing but ends of lines: %q", now)
	}
}
