package outboxtest

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/shape"
)

// updateGolden is the environment variable that makes Golden write all files.
const updateGolden = "OUTBOX_UPDATE_GOLDEN"

// TaskType is an outbox.TaskType of any payload.
type TaskType interface {
	Name() string
	PayloadType() reflect.Type
}

// Golden fails the test if payloads of stored tasks would lose a value, or not decode, with the Go
// types as they are now: a field is gone, has another name or another type, or has become required.
// The files testdata/outbox/NAME.golden, one for each task type, have a line for each field of the
// stored payloads. NAME is the task type, escaped as in a URL's query. Commit them with the code.
//
// Golden writes a missing file, and adds new fields that are not required: these break nothing. Make
// a change that breaks tasks in two deploys. When no task of the old shape waits any more, run go
// test with OUTBOX_UPDATE_GOLDEN=1, which writes the files anew.
//
// Types with methods UnmarshalJSON or UnmarshalText are compared by their names alone.
func Golden(t testing.TB, types ...TaskType) {
	t.Helper()
	var faults []string
	for _, one := range types {
		if err := checkType(one); err != nil {
			t.Fatalf("%v", err)
		}
		broken, err := golden(one)
		if err != nil {
			t.Fatalf("outboxtest: Golden: task type %s: %v", one.Name(), err)
		}
		for _, fault := range broken {
			faults = append(faults, fmt.Sprintf("\n\t%s: %s", one.Name(), fault))
		}
	}
	if len(faults) > 0 {
		t.Fatalf("outboxtest: Golden: payloads changed for tasks that wait:%s\nMake the change in two deploys. If no such task waits, in outbox.task or outbox.dead_task, run the test with %s=1.",
			strings.Join(faults, ""), updateGolden)
	}
}

func checkType(t TaskType) error {
	return must(t != nil && t.Name() != "", "the task type is nil or zero: make it with outbox.NewTaskType")
}

// golden compares a type with its file, or writes the file. It returns the changes that break tasks.
func golden(t TaskType) (faults []string, err error) {
	s, err := shape.Of(t.PayloadType())
	if err != nil {
		return nil, err
	}
	file := filepath.Join("testdata", "outbox", url.QueryEscape(t.Name())+".golden")
	var text strings.Builder
	fmt.Fprintf(&text, "# Payloads of %s, as outboxtest.Golden knows them: path, type, and whether it is required.\n", t.Name())
	for _, l := range s.Lines() {
		fmt.Fprintln(&text, l)
	}
	before, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case os.Getenv(updateGolden) == "":
		lines, err := shape.Parse(string(before))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if faults = shape.Breaks(lines, s.Lines()); len(faults) > 0 {
			return faults, nil
		}
	}
	if strings.ReplaceAll(string(before), "\r\n", "\n") == text.String() {
		return nil, nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	return nil, os.WriteFile(file, []byte(text.String()), 0o644)
}
