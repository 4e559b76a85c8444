package outbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/txoutbox/outbox/internal/codec"
	"github.com/txoutbox/outbox/internal/copied"
	"github.com/txoutbox/outbox/internal/guard"
)

// BeforeEnqueue adds a hook: a function that sees each task of [Enqueue], [EnqueueMany] and
// [TaskType.Enqueue] before any SQL is sent, with the ctx of the call. It is for trace context, the
// tenant and checks. Give it to [NewTaskType] with the other defaults of an app, or to a call.
//
// The task is a copy, with the payload as it was given. A hook may append to its Options, as
// [AddHeaders], and set its Payload; it must not change the value that a pointer in the payload
// leads to. Hooks run in the order of the options, each on the task as the one before left it. An
// error of a hook, or its panic as a handlers.PanicError, is returned wrapped, and nothing is
// enqueued. A hook that changes the Type, adds a hook or takes one away is refused with
// ErrInvalidOption, as is a nil hook.
//
// A hook must be safe for concurrent use and return soon. It is called in a goroutine of its own,
// which the call waits for. Hooks also run for a relay.Schedule with such options, in the
// transaction that fires it, with the values of the context of Start, Run or RunOnce. An error there is that
// of the firing, which is tried again each minute, and is in the log.
//
// No hook runs for [TaskSpec.Encode], handlers.RunAgainWith, a redrive, schedules that operators
// store, the copies of forward.Fanout (their tasks have been enqueued once), and `outbox enqueue`.
func BeforeEnqueue(hook func(ctx context.Context, task *TaskSpec) error) Option {
	return option(func(s *settings) { s.hooks = append(s.hooks, hook) })
}

// runHooks calls the hooks of a task, and returns the task as they leave it.
func runHooks(ctx context.Context, t TaskSpec, s *settings) (TaskSpec, *settings, error) {
	if _, is := t.Payload.(copied.Task[Task[json.RawMessage]]); is {
		return t, s, nil
	}
	spec := t
	spec.Options = slices.Clone(t.Options)
	for _, hook := range s.hooks {
		var err error
		if broken := guard.Call(func() { err = hook(ctx, &spec) }); broken != nil {
			err = broken
		}
		if err != nil {
			return t, s, &codec.HookError{Type: t.Type, Err: err}
		}
	}
	if spec.Type != t.Type {
		return t, s, fmt.Errorf("%w: BeforeEnqueue of %s: it changed the type to %.32q: enqueue another task instead",
			ErrInvalidOption, t.Type, spec.Type)
	}
	after, err := newSettings(spec.Options)
	if err != nil {
		return t, s, fmt.Errorf("outbox: BeforeEnqueue of %s: the options that it left: %w", t.Type, err)
	}
	if len(after.hooks) != len(s.hooks) || s.codecs != nil && after.codecs == nil {
		return t, s, fmt.Errorf("%w: BeforeEnqueue of %s: it added a hook, or took options away: "+
			"append other options to those that are there", ErrInvalidOption, t.Type)
	}
	return spec, after, nil
}

// PayloadCodec encodes payloads for the database, and decodes them: encryption or compression. It is
// safe for concurrent use.
//
// The texts of its errors, and of its panics, are stored and logged like those of a handler: they
// must not quote a payload or a key.
type PayloadCodec interface {
	// Name is stored with each payload, and never changes: it names the method and the key, as
	// aes-gcm-2026-05. It has 1 to 64 bytes of UTF-8 that print, and is no secret.
	Name() string
	// Encode returns what is stored for the payload's JSON. It changes and keeps no byte of plain.
	Encode(plain []byte) ([]byte, error)
	// Decode returns the JSON that Encode got.
	Decode(stored []byte) ([]byte, error)
}

// Codec stores payloads as write encodes them: as a JSON string of base64, with the codec's name in
// the header outbox-codec, which does not count for the limit of [Headers]. Handlers, their
// middleware, package outboxtest and published events have the plain payload, and not that header.
// Each codec also decodes what it has encoded: name former codecs as read, so that keys are rotated.
// A task without the header, as of the time before its type had a codec, is read as it is.
//
// Give it to [NewTaskType], so that the handlers of the type know it. A later Codec replaces an
// earlier one. A nil codec, two codecs of one name and an invalid name are ErrInvalidOption.
//
// A handler's task whose codec is not given, or that its codec refuses, has failed an attempt, with
// an error that names the codec; of a batch it alone. Apply the schema's functions of this version
// (schema.Migrate) and deploy relays that know a codec before the apps that write with it.
//
//   - [MaxPayload] is for the plain payload. What is stored may have 16 MiB, else it is
//     ErrPayloadTooLarge. An error or a panic of Encode is ErrInvalidPayload.
//   - The key of [UniquePayload] is that of the plain payload, a SHA-256, which can confirm a guess. Use
//     [Unique] with another key there.
//   - Types, headers, keys, errors, progress and results of tasks are stored as they are.
//   - handlers.RunAgainWith encodes by the codec of the task, which keeps its headers.
//   - Copies of forward.Fanout are encoded by the codec of their source's type, or by that of
//     forward.TaskOptions. Events are published plain.
//   - A relay.Schedule with the option encodes its tasks. Schedules that operators store and
//     `outbox enqueue` know no codec: their tasks are stored as they are, and read as they are.
//   - SQL, filters and searches by payload, and the command line see the stored string.
func Codec(write PayloadCodec, read ...PayloadCodec) Option {
	all := []codec.Codec{write}
	for _, c := range read {
		all = append(all, c)
	}
	set, err := codec.New(all...)
	return option(func(s *settings) { s.codecs, s.codecFault = set, err })
}

// checkHooks refuses what BeforeEnqueue and Codec were given.
func (s *settings) checkHooks() error {
	if s.codecFault != nil {
		return fmt.Errorf("%w: Codec: %w", ErrInvalidOption, s.codecFault)
	}
	for _, hook := range s.hooks {
		if hook == nil {
			return fmt.Errorf("%w: BeforeEnqueue(nil): give it a function, or leave it out", ErrInvalidOption)
		}
	}
	return nil
}

// encode returns the payload as its codec stores it, and notes the codec and the key of the plain payload.
func (s *settings) encode(plain string) (string, error) {
	name := s.codecs.Writes()
	stored, err := s.codecs.Encode(name, []byte(plain))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidPayload, err)
	}
	headers := make(map[string]string, len(s.headers)+1)
	maps.Copy(headers, s.headers)
	headers[codec.Header] = name
	s.headers = headers
	s.encodeHeaders()
	if s.unique != nil && s.unique.ofPayload {
		s.unique.key = keyOfPayload(plain)
	}
	return stored, nil
}

// checkStored bounds a payload as its codec stores it.
func checkStored(stored string) error {
	if len(stored) > mostPayload {
		return fmt.Errorf("%w: its codec makes it %d bytes, at most %d", ErrPayloadTooLarge, len(stored), mostPayload)
	}
	return nil
}

// keyOfPayload is the unique key that resolve_key (schema/functions/keys.sql) makes of the payload, which
// [lines.add] has checked.
func keyOfPayload(payload string) string {
	d := json.NewDecoder(strings.NewReader(payload))
	d.UseNumber()
	sum := sha256.Sum256([]byte(canonical(d)))
	return payloadKey + ":" + hex.EncodeToString(sum[:])
}

// canonical is the next value as jsonb prints it, with numbers of no zeros at the end of their fractions. Keys of
// an object are in the order of their lengths, and then of their bytes; of repeated keys the last one counts.
func canonical(d *json.Decoder) string {
	token, _ := d.Token() // the text is valid JSON
	switch value := token.(type) {
	case json.Delim:
		var parts []string
		if value == '[' {
			for d.More() {
				parts = append(parts, canonical(d))
			}
			_, _ = d.Token()
			return "[" + strings.Join(parts, ", ") + "]"
		}
		fields := map[string]string{}
		for d.More() {
			name, _ := d.Token()
			text, _ := name.(string)
			fields[text] = canonical(d)
		}
		_, _ = d.Token()
		for _, name := range slices.SortedFunc(maps.Keys(fields), func(a, b string) int {
			return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
		}) {
			parts = append(parts, quoted(name)+": "+fields[name])
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case string:
		return quoted(value)
	case json.Number:
		return decimal(string(value))
	case bool:
		return strconv.FormatBool(value)
	}
	return "null"
}

// quoted is a string as jsonb prints it: it escapes quotes, backslashes and control characters.
func quoted(s string) string {
	var b strings.Builder
	b.Grow(len(s) + 2)
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c >= ' ':
			b.WriteByte(c)
		default:
			const short = "\b\f\n\r\t"
			if at := strings.IndexByte(short, c); at >= 0 {
				b.WriteByte('\\')
				b.WriteByte("bfnrt"[at])
			} else {
				b.WriteString(`\u00`)
				b.WriteString(hex.EncodeToString([]byte{c}))
			}
		}
	}
	b.WriteByte('"')
	return b.String()
}

// decimal is a number without an exponent, without zeros at the end of its fraction, and without the sign of
// zero. [writtenOut] has found that it fits.
func decimal(number string) string {
	exponent := 0
	if e := strings.IndexAny(number, "eE"); e >= 0 {
		exponent, _ = strconv.Atoi(number[e+1:])
		number = number[:e]
	}
	number, negative := strings.CutPrefix(number, "-")
	whole, fraction, _ := strings.Cut(number, ".")
	point := len(whole) + exponent // its place in the digits
	digits := strings.TrimRight(whole+fraction, "0")
	rest := strings.TrimLeft(digits, "0")
	point -= len(digits) - len(rest)
	digits = rest
	if digits == "" {
		return "0"
	}
	switch {
	case point <= 0:
		digits = "0." + strings.Repeat("0", -point) + digits
	case point >= len(digits):
		digits += strings.Repeat("0", point-len(digits))
	default:
		digits = digits[:point] + "." + digits[point:]
	}
	if negative {
		return "-" + digits
	}
	return digits
}

func init() {
	settingsOf := func(options any) *settings {
		s := &settings{}
		for _, o := range options.([]Option) {
			if o != nil {
				o.apply(s)
			}
		}
		return s
	}
	codec.Of = func(options any) *codec.Set { return settingsOf(options).codecs }
	codec.HasHook = func(options any) bool { return len(settingsOf(options).hooks) > 0 }
	codec.Plain = option(func(s *settings) { s.codecs, s.hooks = nil, nil })
	codec.Option = func(set *codec.Set) any { return option(func(s *settings) { s.codecs = set }) }
}
