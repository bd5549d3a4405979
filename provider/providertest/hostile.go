package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// hostilePackage is the program that tries the walls.
const hostilePackage = "github.com/seed46cd37a8/atoll/internal/testing/hostile"

// buildHostile builds it, once.
var buildHostile = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "atoll-hostile")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "hostile")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, hostilePackage)
	cmd.Env = slices.Concat(os.Environ(), []string{"GOOS=linux", "CGO_ENABLED=0"})
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build %s: %w\n%s", hostilePackage, err, out)
	}
	return os.ReadFile(file)
})

// An intruder is the hostile program in a sandbox, and the file of this machine
// that it is after.
type intruder struct {
	h      *harness
	sb     atoll.Sandbox
	path   string
	secret secret
	going  []atoll.Process // attacks that have begun
}

// intruder brings the program into the sandbox.
func (h *harness) intruder(t *testing.T, sb atoll.Sandbox) *intruder {
	t.Helper()
	program, err := buildHostile()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("there is no go command to build the hostile program with")
	}
	if err != nil {
		t.Fatal(err)
	}
	in := &intruder{h: h, sb: sb, path: "./hostile", secret: h.secret(t)}
	if h.p.Info().Isolation == atoll.IsolationNone {
		t.Fatalf("%s has no walls", h.p.Info().Name)
	}
	cmd := word("load", in.path)
	cmd.Stdin = bytes.NewReader(program)
	h.output(t, sb, cmd)
	return in
}

// attack is the command for one of the program's attacks.
func (in *intruder) attack(name string, args ...string) *atoll.Command {
	return program(append([]string{in.path, in.secret.file, in.secret.text, name}, args...)...)
}

// fails makes an attack that ends by itself, and checks that it got nowhere.
func (in *intruder) fails(t *testing.T, name string, args ...string) {
	t.Helper()
	in.judge(t, in.h.capture(t, in.sb, in.attack(name, args...)))
}

// judge checks what an attack has printed.
func (in *intruder) judge(t *testing.T, res atoll.Result) {
	t.Helper()
	for line := range strings.Lines(string(res.Stdout)) {
		if what, ok := strings.CutPrefix(line, "escaped: "); ok {
			t.Error(strings.TrimSpace(what))
		}
	}
	if !bytes.HasSuffix(res.Stdout, []byte("done\n")) && !t.Failed() {
		t.Errorf("the attack did not come to its end: %+v, %q, %q", res.Exit, res.Stdout, res.Stderr)
	}
	in.secret.untouched(t)
}

// begins makes an attack that goes on, and returns when it has begun.
func (in *intruder) begins(t *testing.T, name string, args ...string) atoll.Process {
	t.Helper()
	return in.beginsWith(t, nil, name, args...)
}

// beginsWith is begins of one that has an input.
func (in *intruder) beginsWith(t *testing.T, stdin io.Reader, name string, args ...string) atoll.Process {
	t.Helper()
	scr := newScreen()
	cmd := in.attack(name, args...)
	cmd.Stdin, cmd.Stdout = stdin, scr
	p := in.h.start(t, in.sb, cmd)
	scr.until(t, in.h, "word of its beginning", func(text string) bool {
		return strings.Contains(text, "begun\n") || strings.Contains(text, "escaped: ")
	})
	if strings.Contains(scr.text(), "escaped: ") {
		t.Fatal(strings.TrimSpace(scr.text()))
	}
	in.going = append(in.going, p)
	return p
}

// goesOn checks that the attacks that have begun have not ended.
func (in *intruder) goesOn(t *testing.T) {
	t.Helper()
	for _, p := range in.going {
		ctx, cancel := context.WithTimeout(in.h.ctx(t), time.Millisecond)
		exit, err := p.Wait(ctx)
		cancel()
		if err == nil {
			t.Errorf("the attack has ended: %+v", exit)
		}
	}
}
