package schedule

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
)

// Schedule is a relay.Schedule. It is ready for a Scheduler once Prepare has found nothing wrong.
type Schedule struct {
	Name    string
	Timing  interface{ Next(t time.Time) time.Time }
	Spec    string // relay.Timing's String; its change is a change of the timing
	Task    outbox.TaskSpec
	CatchUp outbox.CatchUp

	payload            string
	timing, definition string // hashes, as in the table
}

// Prepare returns all that is wrong with the fields.
func (s *Schedule) Prepare() (wrong []error) {
	check := func(field string, err error) {
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", field, err))
		}
	}
	s.Task.Options = slices.Clone(s.Task.Options)
	check("Name", CheckName(s.Name))
	check("Timing", s.checkSpec())
	payload, err := s.Task.Encode()
	check("Task", err)
	check("Timing", s.probe())
	if s.CatchUp = cmp.Or(s.CatchUp, outbox.CatchUpOnce); s.CatchUp != outbox.CatchUpOnce && s.CatchUp != outbox.CatchUpAll {
		check("CatchUp", fmt.Errorf("%.32q: it must be outbox.CatchUpOnce or outbox.CatchUpAll", s.CatchUp))
	}
	s.payload = string(payload)
	s.timing = hash(s.Spec)
	s.definition = hash(s.Spec, string(s.CatchUp), s.Task.Type, s.payload)
	return wrong
}

func (s *Schedule) checkSpec() error {
	if s.Spec == "" {
		return errors.New("its String is empty")
	}
	if err := checkText(s.Spec); err != nil {
		return fmt.Errorf("its String: %w", err)
	}
	return nil
}

// probe calls Next once: a nil pointer panics at the start of the app, not at the first firing.
func (s *Schedule) probe() error {
	return within(func() { s.Timing.Next(time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)) })
}

// CheckName returns what is wrong with the name of a schedule.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > 128:
		return fmt.Errorf("%d bytes, at most 128", len(name))
	}
	return checkText(name)
}

func checkText(text string) error {
	if !utf8.ValidString(text) {
		return errors.New("it is not UTF-8")
	}
	for _, c := range text {
		if !unicode.IsPrint(c) {
			return fmt.Errorf("%q does not print", c)
		}
	}
	return nil
}

// Definitions are those of prepared schedules by name, as JSON.
func Definitions(of []Schedule) string {
	all := make(map[string]string, len(of))
	for _, s := range of {
		all[s.Name] = s.definition
	}
	text, _ := json.Marshal(all) // of strings, so there is no error
	return string(text)
}

// hash tells lists of texts apart: each has its length before it.
func hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d:", len(p))
		_, _ = io.WriteString(h, p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
