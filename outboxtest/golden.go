package outboxtest

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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
//
// Experimental: a minor version may change it.
type TaskType interface {
	Name() string
	PayloadType() reflect.Type
}

// Golden fails the test if payloads of stored tasks would lose a value, or not decode, with the Go
// types as they are now: a field is gone, has another name or a type that may not hold its value,
// or has become required. It also fails if a task type is gone: its stored tasks would have no
// handler. Name all task types of a package in one call.
//
// The directory testdata/outbox has a file for each task type, with the fields of the stored
// payloads. Commit the files with the code. Golden writes a missing file, and adds new fields that
// are not required: these break nothing. It logs what it wrote. Where CI is set, as continuous
// integration does, and OUTBOX_UPDATE_GOLDEN is not, it writes nothing, and fails if it should
// have: a file was not committed.
//
// Make a change that breaks tasks in two deploys. When no task of the old shape or type waits any
// more, run go test with OUTBOX_UPDATE_GOLDEN=1, which writes the files anew and removes those of
// types that are gone.
//
// Types that encode or decode themselves are compared by their names alone.
//
// Experimental: a minor version may change it.
func Golden(t testing.TB, types ...TaskType) {
	t.Helper()
	g := golden{update: os.Getenv(updateGolden) != "", files: map[string]bool{}}
	ci := os.Getenv("CI")
	g.readOnly = ci != "" && ci != "false" && !g.update
	for _, one := range types {
		if err := checkType(one); err != nil {
			t.Fatalf("%v", err)
		}
		if err := g.compare(one); err != nil {
			t.Fatalf("outboxtest: Golden: task type %s: %v", one.Name(), err)
		}
	}
	if err := g.findOthers(); err != nil {
		t.Fatalf("outboxtest: Golden: %v", err)
	}
	for _, text := range g.done {
		t.Logf("outboxtest: Golden: %s; commit the change", text)
	}
	var text strings.Builder
	part := func(faults []string, about, advice string) {
		if len(faults) > 0 {
			fmt.Fprintf(&text, "\noutboxtest: Golden: %s:\n\t%s\n%s", about, strings.Join(faults, "\n\t"), advice)
		}
	}
	part(g.broken, "payloads changed for tasks that wait",
		"Make the change in two deploys. If no such task waits, in outbox.task or outbox.dead_task, run the test with "+updateGolden+"=1.")
	part(g.gone, "task types are gone, and their tasks that wait have no handler",
		"Keep each with its handler until none of its tasks waits, in outbox.task or outbox.dead_task; then run the test with "+
			updateGolden+"=1, which removes the file. All task types of a package must be in one call of Golden.")
	part(g.stale, "files are not as committed, and with CI set none is written", "Run the test elsewhere, and commit the files.")
	if text.Len() > 0 {
		t.Fatalf("%s", text.String()[1:])
	}
}

func checkType(t TaskType) error {
	return must(t != nil && t.Name() != "", "the task type is nil or zero: make it with outbox.NewTaskType")
}

// golden is one call of Golden.
type golden struct {
	update, readOnly    bool
	files               map[string]bool // of the types
	broken, gone, stale []string        // faults
	done                []string
}

// goldenFile is what a file says.
type goldenFile struct {
	TaskType string     `json:"task_type"`
	Payload  shape.Tree `json:"payload"`
}

var goldenDir = filepath.Join("testdata", "outbox")

// goldenName is the file of a task type. The hash tells types apart whose readable parts are alike,
// also where a file system ignores case or bounds a name to 143 bytes.
func goldenName(taskType string) string {
	readable := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '_' {
			return r
		}
		return '-'
	}, strings.ToLower(taskType))
	hash := sha256.Sum256([]byte(taskType))
	return filepath.Join(goldenDir, fmt.Sprintf("%.60s-%x.golden", readable, hash[:8]))
}

// compare compares a type with its file, and writes the file if that breaks nothing.
func (g *golden) compare(t TaskType) error {
	s, err := shape.Of(t.PayloadType())
	if err != nil {
		return err
	}
	name, now := goldenName(t.Name()), goldenFile{TaskType: t.Name(), Payload: s.Tree()}
	g.files[name] = true
	before, err := os.ReadFile(name)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	if !missing && !g.update {
		was, err := readGolden(before)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if faults := shape.Breaks(was.Payload, now.Payload); len(faults) > 0 {
			for _, fault := range faults {
				g.broken = append(g.broken, t.Name()+": "+fault)
			}
			return nil
		}
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(now); err != nil {
		return err
	}
	switch {
	case bytes.Equal(bytes.ReplaceAll(before, []byte("\r\n"), []byte("\n")), text.Bytes()):
		return nil
	case g.readOnly:
		g.stale = append(g.stale, fmt.Sprintf("%s of task type %s", name, t.Name()))
		return nil
	}
	g.done = append(g.done, "wrote "+name)
	if err := os.MkdirAll(goldenDir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, text.Bytes(), 0o644)
}

func readGolden(text []byte) (f goldenFile, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return f, fmt.Errorf("no file as Golden writes it: %w; see the change, and run the test with %s=1", err, updateGolden)
	}
	return f, nil
}

// findOthers finds the files of types that the call did not name.
func (g *golden) findOthers() error {
	files, err := filepath.Glob(filepath.Join(goldenDir, "*.golden"))
	if err != nil {
		return err
	}
	for _, name := range files {
		switch {
		case g.files[name]:
		case g.update:
			g.done = append(g.done, "removed "+name)
			if err := os.Remove(name); err != nil {
				return err
			}
		default:
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			f, err := readGolden(text)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			g.gone = append(g.gone, fmt.Sprintf("%s (%s)", f.TaskType, name))
		}
	}
	return nil
}
