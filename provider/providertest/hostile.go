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

// hostilePackage is the program that attacks the isolation.
const hostilePackage = "github.com/seed46cd37a8/atoll/internal/testing/hostile"

// HostileVar names a variable with the path of that program, for a test program that cannot build it.
const HostileVar = "ATOLL_TEST_HOSTILE"

// BuildHostile builds that program, and writes it to a file.
func BuildHostile(file string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, hostilePackage)
	cmd.Env = slices.Concat(os.Environ(), []string{"GOOS=linux", "CGO_ENABLED=0"})
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", hostilePackage, err, out)
	}
	return nil
}

// readHostile builds the program once and returns its bytes.
var readHostile = sync.OnceValues(func() ([]byte, error) {
	if path := os.Getenv(HostileVar); path != "" {
		return os.ReadFile(path)
	}
	dir, err := os.MkdirTemp("", "atoll-hostile")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "hostile")
	if err := BuildHostile(file); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
})

// An attacker is the hostile program in a sandbox, and the file of this machine that it tries to reach.
type attacker struct {
	h       *harness
	sb      atoll.Sandbox
	path    string
	secret  hostSecret
	running []atoll.Process // attacks that go on
}

// newAttacker brings the program into the sandbox.
func (h *harness) newAttacker(t *testing.T, sb atoll.Sandbox) *attacker {
	t.Helper()
	program, err := readHostile()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("there is no go command to build the hostile program with")
	}
	if err != nil {
		t.Fatal(err)
	}
	in := &attacker{h: h, sb: sb, path: "./hostile", secret: h.newSecret(t)}
	if h.p.Info().Isolation == atoll.IsolationNone {
		t.Fatalf("%s has no isolation", h.p.Info().Name)
	}
	cmd := scriptCommand("load", in.path)
	cmd.Stdin = bytes.NewReader(program)
	h.runForOutput(t, sb, cmd)
	return in
}

// attackCommand returns the command for one of the program's attacks.
func (in *attacker) attackCommand(name string, args ...string) *atoll.Command {
	return programCommand(append([]string{in.path, in.secret.file, in.secret.text, name}, args...)...)
}

// checkAttackFails runs an attack that ends by itself, and checks that it failed.
func (in *attacker) checkAttackFails(t *testing.T, name string, args ...string) {
	t.Helper()
	in.checkAttackOutput(t, in.h.runCommand(t, in.sb, in.attackCommand(name, args...)))
}

// checkAttackOutput checks that an attack completed and reports no escape.
func (in *attacker) checkAttackOutput(t *testing.T, res atoll.Result) {
	t.Helper()
	for line := range strings.Lines(string(res.Stdout)) {
		if what, ok := strings.CutPrefix(line, "escaped: "); ok {
			t.Error(strings.TrimSpace(what))
		}
	}
	if !bytes.HasSuffix(res.Stdout, []byte("done\n")) && !t.Failed() {
		t.Errorf("the attack did not complete: %+v, %q, %q", res.Exit, res.Stdout, res.Stderr)
	}
	in.secret.checkUntouched(t)
}

// startAttack starts an attack that goes on, and returns when it has begun.
func (in *attacker) startAttack(t *testing.T, name string, args ...string) atoll.Process {
	t.Helper()
	return in.startAttackWithInput(t, nil, name, args...)
}

// startAttackWithInput is like startAttack, with a stdin.
func (in *attacker) startAttackWithInput(t *testing.T, stdin io.Reader, name string, args ...string) atoll.Process {
	t.Helper()
	scr := newScreen()
	cmd := in.attackCommand(name, args...)
	cmd.Stdin, cmd.Stdout = stdin, scr
	p := in.h.startProcess(t, in.sb, cmd)
	scr.waitUntil(t, in.h, "report of its beginning", func(text string) bool {
		return strings.Contains(text, "begun\n") || strings.Contains(text, "escaped: ")
	})
	if strings.Contains(scr.readText(), "escaped: ") {
		t.Fatal(strings.TrimSpace(scr.readText()))
	}
	in.running = append(in.running, p)
	return p
}

// checkAttacksRun checks that the started attacks have not ended.
func (in *attacker) checkAttacksRun(t *testing.T) {
	t.Helper()
	for _, p := range in.running {
		ctx, cancel := context.WithTimeout(in.h.newContext(t), time.Millisecond)
		exit, err := p.Wait(ctx)
		cancel()
		if err == nil {
			t.Errorf("the attack has ended: %+v", exit)
		}
	}
}
