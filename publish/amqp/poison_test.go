package outboxamqp_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// poisoned is a connection that the broker closes with a code over each event whose data has the
// word poison.
type poisoned struct {
	net.Conn
	code   uint16
	said   *io.PipeReader // of the broker
	say    *io.PipeWriter
	copied chan struct{} // closed at the end of what the broker itself says
	closed atomic.Bool   // so nothing is written any more
}

// dialPoisoned is that of an amqp.Config.
func dialPoisoned(code uint16) func(network, address string) (net.Conn, error) {
	return func(network, address string) (net.Conn, error) {
		c, err := net.DialTimeout(network, address, time.Minute)
		if err != nil {
			return nil, err
		}
		p := &poisoned{Conn: c, code: code, copied: make(chan struct{})}
		p.said, p.say = io.Pipe()
		go func() {
			defer close(p.copied)
			_, _ = io.Copy(p.say, c)
		}()
		return p, nil
	}
}

func (p *poisoned) Write(b []byte) (int, error) {
	switch {
	case p.closed.Load():
		return len(b), nil
	case !bytes.Contains(b, []byte("poison")):
		return p.Conn.Write(b)
	}
	p.closed.Store(true)
	_ = p.Conn.Close()
	go func() {
		<-p.copied
		_, _ = p.say.Write(connectionClose(p.code))
	}()
	return len(b), nil
}

func (p *poisoned) Read(b []byte) (int, error)      { return p.said.Read(b) }
func (p *poisoned) SetReadDeadline(time.Time) error { return nil }

func (p *poisoned) Close() error {
	_ = p.say.Close()
	return p.Conn.Close()
}

// connectionClose is the frame of that method.
func connectionClose(code uint16) []byte {
	const reason = "POISONED"
	payload := binary.BigEndian.AppendUint16([]byte{0, 10, 0, 50}, code)
	payload = append(append(payload, byte(len(reason))), reason...)
	payload = append(payload, 0, 60, 0, 40) // basic.publish
	frame := binary.BigEndian.AppendUint32([]byte{1, 0, 0}, uint32(len(payload)))
	return append(append(frame, payload...), 0xCE)
}
