package providertest_test

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// wallMutants have no isolation. A script takes the place of the hostile program where that would only
// attack this machine.
var wallMutants = []mutant{
	newMutant("has no isolation", "escape/no path leads to a file of the host", withoutIsolation("")),
	newMutant("lets programs kill outside", "escape/signals and traces reach no process outside",
		withoutIsolation(`kill -9 $4; echo begun; exec sleep 1000`)),
	newMutant("lets programs stop others outside", "escape/signals and traces reach no process outside",
		withoutIsolation(`kill -STOP $4; echo begun; exec sleep 1000`)),
	newMutant("lets programs write outside", "escape/no path leads to a file of the host", withoutIsolation(`echo x >>"$1"; echo done`)),
	newMutant("lets programs make files outside", "escape/no path leads to a file of the host", withoutIsolation(`>"${1%/*}/planted"; echo done`)),
	newMutant("lets a program slow down other sandboxes", "exhaustion/a flood of unread output does not slow down other sandboxes", withoutIsolation(`echo begun; exec sleep 1000`)),
	newMutant("follows links to the host", "escape/links that change during file calls do not lead to the host", withoutIsolation(`echo begun; exec sleep 1000`)),
}

// withoutIsolation returns a function that opens a provider of local processes that claims isolation. The
// script takes the place of the hostile program, with its arguments.
func withoutIsolation(script string) func(*testing.T) atoll.Provider {
	claim := changeInfo(func(i *atoll.Info) { i.Isolation = atoll.IsolationKernel })
	return onLocal(func(t *testing.T, p atoll.Provider) atoll.Provider {
		a := &attackState{}
		return changedProvider{atoll.ProviderLayer{Provider: claim(t, p)}, func(sb atoll.Sandbox) atoll.Sandbox {
			return attackedSandbox{atoll.SandboxLayer{Sandbox: sb}, script, a}
		}}
	})
}

// An attackState holds the text of the secret that the program attacks.
type attackState struct {
	mu     sync.Mutex
	secret string // "" until the attack has begun
}

// An attackedSandbox runs the script instead of the hostile program. During the attack it is slow.
type attackedSandbox struct {
	atoll.SandboxLayer
	script string
	a      *attackState
}

func (s attackedSandbox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	s.a.mu.Lock()
	begun := s.a.secret != ""
	if cmd.Args[0] == "./hostile" {
		s.a.secret = cmd.Args[2]
	}
	s.a.mu.Unlock()
	c := *cmd
	switch {
	case c.Args[0] == "./hostile" && s.script != "":
		c.Args = slices.Concat([]string{"sh", "-c", s.script, "sh"}, c.Args[1:])
	case c.Args[0] == "echo" && begun:
		time.Sleep(time.Second)
	}
	return s.Sandbox.Exec(ctx, &c)
}

func (s attackedSandbox) Files() atoll.FS { return linkFollowingFS{atoll.Files(s.Sandbox), s.a} }

// A linkFollowingFS returns the host's secret for every file called "secret".
type linkFollowingFS struct {
	atoll.FS
	a *attackState
}

func (f linkFollowingFS) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	r, info, err := f.FS.Read(ctx, name, offset)
	if err != nil || !strings.HasSuffix(name, "/secret") {
		return r, info, err
	}
	defer r.Close()
	f.a.mu.Lock()
	defer f.a.mu.Unlock()
	return io.NopCloser(bytes.NewReader([]byte(f.a.secret))), info, nil
}
