//go:build unix

package wsl2_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/vm"
	"github.com/seed46cd37a8/atoll/vm/wsl2"
)

// starterVar makes the test binary one that starts a machine and stays.
const starterVar = "ATOLL_WSL2_STARTER"

func starter(text string) {
	var s struct {
		Opts wsl2.Options
		H    vm.Hardware
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	m, err := wsl2.New(s.Opts).New(&s.H)
	if err == nil {
		err = m.Start(context.Background())
	}
	fmt.Println("started:", err)
	time.Sleep(time.Hour)
}

// startElsewhere starts a machine in another process, which is to be killed.
func startElsewhere(t *testing.T, opts wsl2.Options, h vm.Hardware) (kill func()) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"Opts": opts, "H": h})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), starterVar+"="+string(text))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	said := make([]byte, len("started: <nil>\n"))
	if _, err := io.ReadFull(out, said); err != nil || string(said) != "started: <nil>\n" {
		kill()
		t.Fatalf("%q, %v", said, err)
	}
	return kill
}

// What is left by a starter that was killed: the guest has ended with its stdin, and the
// distribution goes with the next one of that name.
func TestLeftovers(t *testing.T) {
	l := newLab(t, script{})
	startElsewhere(t, l.opts, l.h)()
	if len(l.known()) != 1 {
		t.Fatalf("distributions: %v", l.known())
	}
	m := l.start()
	conn, err := m.Dial(l.ctx(), echoPort)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := m.Kill(); err != nil {
		t.Error(err)
	}
	l.nothingLeft()
}
