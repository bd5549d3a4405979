//go:build linux

package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// A monitor is QEMU's QMP, by which a machine is ruled: commands and their answers as
// JSON, and in between what happens.
type monitor struct {
	conn io.ReadWriteCloser

	order sync.Mutex // one command at a time: answers come in their order
	reply chan message
	ended chan struct{} // closed when QEMU has hung up
}

// A message is an answer, or an event.
type message struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`

	Event string `json:"event"`
	Data  struct {
		Reason string `json:"reason"`
		Full   bool   `json:"nospace"` // of an error of a disk
		Action string `json:"action"`  // what that has led to
	} `json:"data"`
}

// newMonitor returns a monitor on conn, which it owns. Each event is passed to happen.
func newMonitor(conn io.ReadWriteCloser, happen func(event message)) *monitor {
	m := &monitor{conn: conn, reply: make(chan message, 1), ended: make(chan struct{})}
	go func() {
		defer close(m.ended)
		dec := json.NewDecoder(bufio.NewReader(conn))
		for {
			var a message
			if err := dec.Decode(&a); err != nil {
				return
			}
			switch {
			case a.Event != "":
				happen(a)
			case a.Return != nil || a.Error != nil: // else it is the greeting
				m.reply <- a
			}
		}
	}()
	return m
}

// errHungUp is why a command is not answered.
var errHungUp = errors.New("QEMU has ended")

// do executes a command, and reads what it returns into result, unless that is nil.
func (m *monitor) do(ctx context.Context, command string, args map[string]any, result any) error {
	m.order.Lock()
	defer m.order.Unlock()
	line, err := json.Marshal(map[string]any{"execute": command, "arguments": args})
	if len(args) == 0 {
		line, err = json.Marshal(map[string]any{"execute": command})
	}
	if err != nil {
		return err
	}
	if _, err := m.conn.Write(append(line, '\n')); err != nil {
		return errHungUp
	}
	select {
	case a := <-m.reply:
		if a.Error != nil {
			return fmt.Errorf("%s: %s", command, a.Error.Desc)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(a.Return, result)
	case <-m.ended:
		return errHungUp
	case <-ctx.Done():
		_ = m.conn.Close() // the answer may come at any time, for the next one
		return ctx.Err()
	}
}

// close hangs up, and waits for what reads.
func (m *monitor) close() {
	_ = m.conn.Close()
	for {
		select {
		case <-m.reply:
		case <-m.ended:
			return
		}
	}
}
