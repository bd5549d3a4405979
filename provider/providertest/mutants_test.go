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
	name   string
	caught string // by this subtest of Run
	open   func(t *testing.T) atoll.Provider
	opts   []providertest.Option
}

func breaks(name, caught string, open func(t *testing.T) atoll.Provider, opts ...providertest.Option) mutant {
	return mutant{name, caught, open, opts}
}

var mutants = []mutant{
	breaks("removes nothing", "death/removing twice, and by another handle, does nothing", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return immortal{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("hides abilities", "truth/each optional ability is there exactly when its cap is", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return struct{ atoll.Sandbox }{sb}
	})),
	breaks("loses abilities in Get", "truth/a sandbox that Get finds has the abilities of one that Create made", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return forgetful{atoll.ProviderLayer{Provider: p}}
	})),
	breaks("claims what it cannot", "truth/the stores are there exactly when their caps are", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return boastful{atoll.ProviderLayer{Provider: p}}
	})),
	breaks("keeps images in secret", "truth/the stores are there exactly when their caps are", onMock(claiming(func(i *atoll.Info) { i.Caps.ImageStore = false }))),
	breaks("starts what it says it cannot", "truth/Restart tells whether a stopped sandbox can start again", onMock(claiming(func(i *atoll.Info) {
		i.Caps.Durable, i.Caps.Restart = atoll.DurableNone, false
	}))),
	breaks("starts nothing again", "truth/Restart tells whether a stopped sandbox can start again", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return ended{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("keeps a root that it says is fresh", "memory/a root file system that is not durable is a fresh one after Start", onMock(claiming(func(i *atoll.Info) {
		i.Caps.Durable, i.Isolation = atoll.DurableNone, atoll.IsolationContainer
	}))),
	breaks("removes images that are in use", "images/an image that a sandbox was made from is in use, running or not",
		onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
			return careless{atoll.ProviderLayer{Provider: p}}
		}), providertest.Pullable("docker.io/library/app:1")),
	breaks("turns exits into errors", "exec/exit codes come back", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return strict{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("lets the context of Exec kill", "time/the context of Exec bounds the start, not the process", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return clingy{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("tells nobody who waits that it was killed", "death/Remove wakes those who wait and those who are attached", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return cheerful{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("tells nobody later that it was killed", "death/a process that its sandbox's end has ended says so ever after", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return cheerful{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("forgets what the main process printed", "death/what the main process printed can be read when it has ended, and its exit", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return oblivious{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("hangs with an ended context", "death/a context that has ended ends every call", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return patient{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("does nothing with an ended context", "death/Stop and Remove with a context that has ended do their work or say that they did not", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return lazy{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("stops what its caller gives up to remove", "death/Remove that its caller gives up does its work, or leaves the sandbox alone", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return halfway{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("forgets how it ended", "death/Stop asks before it kills", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return exitless{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("runs elsewhere", "exec/a directory that is none, or is not there, is no place to run", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return homely{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("lets everybody out", "walls/a sandbox sees no process of the host, nor can it signal one", onLocal(claiming(func(i *atoll.Info) {
		i.Isolation = atoll.IsolationKernel
	}))),
	breaks("has ways out", "network/without a network there is no way out", onLocal(claiming(func(i *atoll.Info) { i.Caps.NetworkNone = true }))),
	breaks("has a way to the host", "network/without a network there is no way to the host", onLocal(claiming(func(i *atoll.Info) { i.Caps.NetworkNone = true }))),
	breaks("knows names", "network/without a network no name is known", onLocal(claiming(func(i *atoll.Info) { i.Caps.NetworkNone = true }))),
	breaks("knows no names", "network/with a network names are known", onMock(claiming(func(i *atoll.Info) { i.Caps.NetworkOn = true }))),
	breaks("drops labels", "birth/Status, Get and List give back what Create was asked for", sandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return unlabelled{atoll.SandboxLayer{Sandbox: sb}}
	})),
	breaks("makes what another was asked for", "birth/the provider can be named, and no other", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return obliging{atoll.ProviderLayer{Provider: p}}
	})),
	breaks("never says synced", "watch/Watch replays every sandbox, then says synced, then follows", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return unsynced{atoll.ProviderLayer{Provider: p}}
	})),
	breaks("leaks a goroutine", "exec/exit codes come back", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		go time.Sleep(time.Minute)
		return p
	})),
	breaks("leaks a descriptor", "exec/exit codes come back", onMock(func(t *testing.T, p atoll.Provider) atoll.Provider {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		forgotten = append(forgotten, f)
		return p
	})),
	breaks("leaks a child", "exec/exit codes come back", onMock(func(t *testing.T, p atoll.Provider) atoll.Provider {
		if err := exec.Command("true").Start(); err != nil {
			t.Fatal(err)
		}
		return p
	})),
	breaks("leaks a grandchild", "exec/exit codes come back", onMock(func(t *testing.T, p atoll.Provider) atoll.Provider {
		return newParent(t, p)
	})),
	breaks("leaks a directory", "exec/exit codes come back", onMock(func(t *testing.T, p atoll.Provider) atoll.Provider {
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
	for _, m := range slices.Concat(mutants, claimants, unconfined, porous) {
		t.Run(m.name, func(t *testing.T) {
			group, promise, _ := strings.Cut(m.caught, "/")
			pattern := "^TestMutant$/^" + group + "$/^" + strings.ReplaceAll(promise, " ", "_") + "$"
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", pattern, "-test.v")
			cmd.Env = append(os.Environ(), "MUTANT="+m.name, "MUTANT_DIR="+t.TempDir())
			out, err := cmd.CombinedOutput()
			if strings.Contains(string(out), "--- SKIP: TestMutant/"+group+"/") {
				t.Skipf("this machine lacks what it takes to notice:\n%s", out)
			}
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestMutant/"+group+"/") {
				t.Errorf("%q did not notice: %v\n%s", m.caught, err, out)
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
	for _, m := range slices.Concat(mutants, claimants, unconfined, porous) {
		if m.name == name {
			providertest.Run(t, m.open, append(m.opts, providertest.Slow(0.1), providertest.Leaks(leaks))...)
			return
		}
	}
	t.Fatalf("no mutant %q", name)
}
