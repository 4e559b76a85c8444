package outbox_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// aesGCM encrypts payloads by AES-GCM. Its name has the id of the key.
type aesGCM struct {
	name string
	aead cipher.AEAD
}

// newAESGCM makes the codec of a key of 16, 24 or 32 random bytes, from a store of secrets.
func newAESGCM(keyID string, key []byte) (*aesGCM, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &aesGCM{name: "aes-gcm-" + keyID, aead: aead}, err
}

func (c *aesGCM) Name() string { return c.name }

// The name is authenticated with the payload: no other codec decodes it.
func (c *aesGCM) Encode(plain []byte) ([]byte, error) {
	return c.aead.Seal(nil, nil, plain, []byte(c.name)), nil
}

func (c *aesGCM) Decode(stored []byte) ([]byte, error) {
	return c.aead.Open(nil, nil, stored, []byte(c.name))
}

// Payloads are encrypted with the new key. Tasks that the old key has encrypted run as before; when none
// waits any more, in outbox.task and outbox.dead_task, the old codec is left out.
func ExampleCodec() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	key := func() []byte { // here random; else from a store of secrets
		key := make([]byte, 32)
		_, _ = rand.Read(key)
		return key
	}
	before, err := newAESGCM("2026-01", key())
	must(err)
	now, err := newAESGCM("2026-05", key())
	must(err)
	old := outbox.NewTaskType[string]("SEND_MAIL", outbox.Codec(before))
	mail := outbox.NewTaskType[string]("SEND_MAIL", outbox.Codec(now, before)) // as the app is now

	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := old.Enqueue(ctx, tx, "ada@example.com")
		if err == nil {
			_, err = mail.Enqueue(ctx, tx, "eve@example.com")
		}
		return err
	}))
	var readable int
	var codecs string
	must(db.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE payload::text LIKE '%example%'),
		string_agg(headers ->> 'outbox-codec', ' ' ORDER BY task_id) FROM outbox.task`).Scan(&readable, &codecs))
	fmt.Println(readable, "readable payloads, of", codecs)

	reg := handlers.New()
	handlers.Leased(reg, mail, func(_ context.Context, task *outbox.Task[string]) error {
		fmt.Println("mail to", task.Payload)
		return nil
	})
	runDue(ctx, db, reg)
	// Output:
	// 0 readable payloads, of aes-gcm-2026-01 aes-gcm-2026-05
	// mail to ada@example.com
	// mail to eve@example.com
}

type requestTenant struct{}

// An app keeps its defaults for all task types. Here each task has its tenant, or is not enqueued.
func ExampleBeforeEnqueue() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	errNoTenant := errors.New("the context has no tenant")
	defaults := []outbox.Option{outbox.BeforeEnqueue(func(ctx context.Context, task *outbox.TaskSpec) error {
		tenant, ok := ctx.Value(requestTenant{}).(string)
		if !ok {
			return errNoTenant
		}
		task.Options = append(task.Options, outbox.AddHeaders(map[string]string{"tenant": tenant}))
		return nil
	})}
	mail := outbox.NewTaskType[string]("SEND_MAIL", defaults...)

	enqueue := func(ctx context.Context, email string) error {
		return outbox.InTx(ctx, db, func(tx *sql.Tx) error {
			_, err := mail.Enqueue(ctx, tx, email)
			return err
		})
	}
	err := enqueue(ctx, "eve@example.com")
	fmt.Println(err, errors.Is(err, errNoTenant))
	fmt.Println(enqueue(context.WithValue(ctx, requestTenant{}, "acme"), "ada@example.com"))
	reg := handlers.New()
	handlers.Leased(reg, mail, func(_ context.Context, task *outbox.Task[string]) error {
		fmt.Println("mail to", task.Payload, "of", task.Headers["tenant"])
		return nil
	})
	runDue(ctx, db, reg)
	// Output:
	// outbox: BeforeEnqueue of SEND_MAIL: the context has no tenant true
	// <nil>
	// mail to ada@example.com of acme
}
