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

// A monitor controls a machine over QEMU's QMP: commands and answers as JSON, with events in
// between.
type monitor struct {
	conn io.ReadWriteCloser

	commandMu sync.Mutex // one command at a time: answers come in the order of commands
	reply     chan message
	ended     chan struct{} // closed when QEMU has hung up
}

// A message is an answer or an event of QEMU.
type message struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`

	Event string `json:"event"`
	Data  struct {
		Reason string `json:"reason"`
		Full   bool   `json:"nospace"` // of a disk's error: no room
		Action string `json:"action"`  // what QEMU did about the error
	} `json:"data"`
}

// newMonitor returns a monitor on conn, which it owns. It passes each event to handle.
func newMonitor(conn io.ReadWriteCloser, handle func(event message)) *monitor {
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
				handle(a)
			case a.Return != nil || a.Error != nil: // else it is the greeting
				m.reply <- a
			}
		}
	}()
	return m
}

// errHungUp is the error of commands without an answer.
var errHungUp = errors.New("QEMU has ended")

// execCommand executes a command, and decodes its result into result unless that is nil.
func (m *monitor) execCommand(ctx context.Context, command string, args map[string]any, result any) error {
	m.commandMu.Lock()
	defer m.commandMu.Unlock()
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
		_ = m.conn.Close() // the next command would get a late answer
		return ctx.Err()
	}
}

// close hangs up, and waits for the end of the reading goroutine.
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
