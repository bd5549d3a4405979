package providertest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// A mutant breaks one promise, and the suite has to notice in the subtest
// named.
type mutant struct {
	name     string
	caughtBy string // by this subtest of Run
	open     func(t *testing.T) atoll.Provider
	opts     []providertest.Option
}

func newMutant(name, caught string, open func(t *testing.T) atoll.Provider, opts ...providertest.Option) mutant {
	return mutant{name, caught, open, opts}
}

var mutants = []mutant{
	newMutant("removes nothing", "death/removing twice, and by another handle, does nothing", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return unremovableSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("hides abilities", "truth/each optional ability is there exactly when its cap is", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return struct{ atoll.Sandbox }{sb}
	})),
	newMutant("loses abilities in Get", "truth/a sandbox that Get finds has the abilities of one that Create made", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return bareGetProvider{atoll.ProviderLayer{Provider: p}}
	})),
	newMutant("claims what it cannot", "truth/the stores are there exactly when their caps are", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return falseCapsProvider{atoll.ProviderLayer{Provider: p}}
	})),
	newMutant("keeps images in secret", "truth/the stores are there exactly when their caps are", onMock(changeInfo(func(i *atoll.Info) { i.Caps.ImageStore = false }))),
	newMutant("starts what it says it cannot", "truth/Restart tells whether a stopped sandbox can start again", onMock(changeInfo(func(i *atoll.Info) {
		i.Caps.Durable, i.Caps.Restart = atoll.DurableNone, false
	}))),
	newMutant("starts nothing again", "truth/Restart tells whether a stopped sandbox can start again", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return noStartSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("keeps a root that it says is fresh", "memory/a root file system that is not durable is a fresh one after Start", onMock(changeInfo(func(i *atoll.Info) {
		i.Caps.Durable, i.Isolation = atoll.DurableNone, atoll.IsolationContainer
	}))),
	newMutant("removes images that are in use", "images/an image that a sandbox was made from is in use, running or not",
		onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
			return forceRemoveProvider{atoll.ProviderLayer{Provider: p}}
		}), providertest.Pullable("docker.io/library/app:1")),
	newMutant("turns exits into errors", "exec/exit codes come back", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return strictSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("lets the context of Exec kill", "time/the context of Exec bounds the start, not the process", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return contextBoundSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("tells nobody who waits that it was killed", "death/Remove wakes those who wait and those who are attached", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return zeroExitSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("tells nobody later that it was killed", "death/a process that its sandbox's end has ended says so ever after", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return zeroExitSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("forgets what the main process printed", "death/what the main process printed can be read when it has ended, and its exit", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return noMainOutputSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("hangs with an ended context", "death/a context that has ended ends every call", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return slowStatusSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("does nothing with an ended context", "death/Stop and Remove with a context that has ended do their work or say that they did not", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return skipStopSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("stops what its caller gives up to remove", "death/Remove that its caller gives up does its work, or leaves the sandbox alone", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return halfRemovedSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("forgets how it ended", "death/Stop asks before it kills", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return noExitSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("runs elsewhere", "exec/a directory that is none, or is not there, is no place to run", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return workdirSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("lets everybody out", "walls/a sandbox sees no process of the host, nor can it signal one", onLocal(changeInfo(func(i *atoll.Info) {
		i.Isolation = atoll.IsolationKernel
	}))),
	newMutant("has ways out", "network/without a network there is no way out", onLocal(changeInfo(func(i *atoll.Info) { i.Caps.NetworkNone = true }))),
	newMutant("has a way to the host", "network/without a network there is no way to the host", onLocal(changeInfo(func(i *atoll.Info) { i.Caps.NetworkNone = true }))),
	newMutant("knows names", "network/without a network no name is known", onLocal(changeInfo(func(i *atoll.Info) { i.Caps.NetworkNone = true }))),
	newMutant("knows no names", "network/with a network names are known", onMock(changeInfo(func(i *atoll.Info) { i.Caps.NetworkOn = true }))),
	newMutant("drops labels", "birth/Status, Get and List give back what Create was asked for", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return unlabelledSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("makes what another was asked for", "birth/the provider can be named, and no other", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return anyNameProvider{atoll.ProviderLayer{Provider: p}}
	})),
	newMutant("never says synced", "watch/Watch replays every sandbox, then says synced, then follows", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return unsyncedProvider{atoll.ProviderLayer{Provider: p}}
	})),
	newMutant("leaks a goroutine", "exec/exit codes come back", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		go time.Sleep(time.Minute)
		return p
	})),
	newMutant("leaks a descriptor", "exec/exit codes come back", onMock(func(t *testing.T, p atoll.Provider) atoll.Provider {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		forgotten = append(forgotten, f)
		return p
	})),
	newMutant("leaks a child", "exec/exit codes come back", onMock(func(t *testing.T, p atoll.Provider) atoll.Provider {
		if err := exec.Command("true").Start(); err != nil {
			t.Fatal(err)
		}
		return p
	})),
	newMutant("leaks a grandchild", "exec/exit codes come back", onMock(func(t *testing.T, p atoll.Provider) atoll.Provider {
		return newParent(t, p)
	})),
	newMutant("leaks a directory", "exec/exit codes come back", onMock(func(t *testing.T, p atoll.Provider) atoll.Provider {
		if _, err := os.MkdirTemp(os.Getenv("MUTANT_DIR"), ""); err != nil {
			t.Fatal(err)
		}
		return p
	})),
}

// forgotten keeps the files that a mutant leaks from being collected, which would
// close them.
var forgotten []*os.File

// TestMutants runs the suite on each mutant in a process of its own, because
// there it has to fail.
func TestMutants(t *testing.T) {
	for _, m := range slices.Concat(mutants, claimMutants, subMutants, wallMutants) {
		t.Run(m.name, func(t *testing.T) {
			group, promise, _ := strings.Cut(m.caughtBy, "/")
			pattern := "^TestMutant$/^" + group + "$/^" + strings.ReplaceAll(promise, " ", "_") + "$"
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", pattern, "-test.v")
			cmd.Env = append(os.Environ(), "MUTANT="+m.name, "MUTANT_DIR="+t.TempDir())
			out, err := cmd.CombinedOutput()
			if strings.Contains(string(out), "--- SKIP: TestMutant/"+group+"/") {
				t.Skipf("this machine lacks what it takes to notice:\n%s", out)
			}
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestMutant/"+group+"/") {
				t.Errorf("%q did not notice: %v\n%s", m.caughtBy, err, out)
			}
		})
	}
}

// TestMutant is the suite on the mutant that the environment names.
func TestMutant(t *testing.T) {
	name := os.Getenv("MUTANT")
	if name == "" {
		t.Skip("run by TestMutants")
	}
	dir := os.Getenv("MUTANT_DIR")
	leaks := func(t *testing.T) []string {
		names, err := filepath.Glob(dir + "/*")
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	for _, m := range slices.Concat(mutants, claimMutants, subMutants, wallMutants) {
		if m.name == name {
			providertest.Run(t, m.open, append(m.opts, providertest.Slow(0.1), providertest.Leaks(leaks))...)
			return
		}
	}
	t.Fatalf("no mutant %q", name)
}
