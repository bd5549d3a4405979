package tools_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A process that doesn't read blocks no call.
func TestWriteToWhoDoesNotRead(t *testing.T) {
	b := newBench(t, tools.Options{})
	id := b.call("sandbox_exec", m{"command": "while [ ! -e go ]; do sleep 0.1; done; head -c 999999 | wc -c; cat", "background": true}).out["process_id"]
	big := strings.Repeat("x", 999999)
	began := time.Now()
	r := b.call("sandbox_process_write", m{"process_id": id, "input": big}).wantFields("written", len(big))
	if took := time.Since(began); took > testenv.Scale(10*time.Second) || !strings.Contains(fmt.Sprint(r.out["note"]), "Do not send it again") {
		t.Errorf("after %s: %v", took, r.out)
	}
	b.call("sandbox_process_write", m{"process_id": id, "input": "more"}).wantError(atoll.ErrConflict, "has not read yet")
	b.call("sandbox_exec", m{"command": "touch go"}).wantFields("exit_code", 0)
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); b.call("sandbox_process_read", m{"process_id": id}).wantFields().out["stdout"] != "999999\n"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the process does not read")
		}
	}
	b.call("sandbox_process_write", m{"process_id": id, "input": "end", "close": true}).wantFields("written", 3, "note", nil)
	b.call("sandbox_process_wait", m{"process_id": id}).wantFields("stdout", "999999\nend", "exit_code", 0)

	id = b.call("sandbox_exec", m{"command": "exec <&-; echo closed; sleep 1000", "background": true}).out["process_id"]
	for b.call("sandbox_process_read", m{"process_id": id}).wantFields().out["stdout"] == "" {
		time.Sleep(10 * time.Millisecond)
	}
	b.call("sandbox_process_write", m{"process_id": id, "input": "x"}).wantError(atoll.ErrConflict, "closed")
	b.call("sandbox_process_kill", m{"process_id": id, "signal": "KILL"}).wantFields()
	for range 20 { // a process that exits after reading the text is no error
		id = b.call("sandbox_exec", m{"command": "read line", "background": true}).out["process_id"]
		b.call("sandbox_process_write", m{"process_id": id, "input": "x\n"}).wantFields("written", 2)
	}
}

// Input that a kit has accepted is delivered, also if stdin is closed at once.
func TestWrittenIsWritten(t *testing.T) {
	b := newBench(t, tools.Options{})
	for i := range 20 {
		id := b.call("sandbox_exec", m{"command": "read line; echo got $line; read line", "background": true}).out["process_id"]
		b.call("sandbox_process_write", m{"process_id": id, "input": fmt.Sprintf("%d\n", i)}).wantFields("written", len(fmt.Sprint(i))+1)
		b.Close()
		b = newBenchOn(t, b.provider, tools.Options{})
		b.call("sandbox_process_write", m{"process_id": id, "input": "more\n"}).wantFields()
		b.call("sandbox_process_wait", m{"process_id": id}).wantFields("stdout", fmt.Sprintf("got %d\n", i))
	}
}

func TestOffsetsThatAreNone(t *testing.T) {
	b := newBench(t, tools.Options{})
	id := b.call("sandbox_exec", m{"command": "echo out; echo error >&2", "background": true}).out["process_id"]
	b.call("sandbox_process_wait", m{"process_id": id, "stdout_offset": 4, "stderr_offset": 6}).wantFields("stdout", "", "stderr", "", "stdout_offset", 4)
	b.call("sandbox_process_read", m{"process_id": id, "stdout_offset": 5}).wantError(atoll.ErrInvalid, "4 bytes on stdout", "the last answer")
	b.call("sandbox_process_read", m{"process_id": id, "stderr_offset": 1 << 40}).wantError(atoll.ErrInvalid, "6 on stderr")
	b.call("sandbox_process_read", m{"process_id": ""}).wantError(atoll.ErrNotExist, fmt.Sprint(id))
	b.call("sandbox_process_read", m{"process_id": "../x"}).wantError(atoll.ErrNotExist, fmt.Sprint(id))
}
