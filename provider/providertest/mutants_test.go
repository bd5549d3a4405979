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

// A mutant is a provider that breaks one promise. The named subtest of the suite must fail.
type mutant struct {
	name     string
	caughtBy string // "group/promise"
	open     func(t *testing.T) atoll.Provider
	opts     []providertest.Option
}

func newMutant(name, caught string, open func(t *testing.T) atoll.Provider, opts ...providertest.Option) mutant {
	return mutant{name, caught, open, opts}
}

var mutants = []mutant{
	newMutant("removes nothing", "remove/a second Remove, also by another handle, does nothing", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return unremovableSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("hides abilities", "caps/each optional ability works exactly if its cap is set", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return struct{ atoll.Sandbox }{sb}
	})),
	newMutant("loses abilities in Get", "caps/a sandbox from Get has the abilities of one from Create", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return bareGetProvider{atoll.ProviderLayer{Provider: p}}
	})),
	newMutant("claims stores that it lacks", "caps/the stores work exactly if their caps are set", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return falseCapsProvider{atoll.ProviderLayer{Provider: p}}
	})),
	newMutant("claims to know refusals", "caps/each optional ability works exactly if its cap is set", onMock(changeInfo(func(i *atoll.Info) { i.Caps.Refusals = true }))),
	newMutant("claims to log its network", "caps/each optional ability works exactly if its cap is set", onMock(changeInfo(func(i *atoll.Info) { i.Caps.NetworkLog = true }))),
	newMutant("hides its image store", "caps/the stores work exactly if their caps are set", onMock(changeInfo(func(i *atoll.Info) { i.Caps.ImageStore = false }))),
	newMutant("starts again without the cap", "caps/Caps.Restart says whether a stopped sandbox can start again", onMock(changeInfo(func(i *atoll.Info) {
		i.Caps.Durable, i.Caps.Restart = atoll.DurableNone, false
	}))),
	newMutant("does not start again", "caps/Caps.Restart says whether a stopped sandbox can start again", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return noStartSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("keeps a root that is not durable", "restart/a root file system that is not durable is fresh after Start", onMock(changeInfo(func(i *atoll.Info) {
		i.Caps.Durable, i.Isolation = atoll.DurableNone, atoll.IsolationContainer
	}))),
	newMutant("removes images that are in use", "images/the image of a sandbox is in use, whether that runs or not",
		onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
			return forceRemoveProvider{atoll.ProviderLayer{Provider: p}}
		}), providertest.PullableImage("docker.io/library/app:1")),
	newMutant("turns exits into errors", "exec/exit codes come back", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return strictSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("kills when the context of Exec ends", "time/the context of Exec bounds the start, not the process", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return contextBoundSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("hides from a pending Wait that it was killed", "remove/Remove ends pending Wait and Attach calls", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return zeroExitSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("hides from a later Wait that it was killed", "remove/a process that ended with its sandbox keeps reporting so", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return zeroExitSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("forgets the output of the main process", "remove/output and exit of the main process can be read after its end", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return noMainOutputSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("hangs with an ended context", "remove/every call returns when its context has ended", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return slowStatusSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("does nothing with an ended context", "remove/Stop and Remove with an ended context do their work or return its error", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return skipStopSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("stops in a cancelled Remove", "remove/a Remove whose context ends removes the sandbox or leaves it running", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return halfRemovedSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("forgets how it ended", "remove/Stop sends SIGTERM before it kills", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return noExitSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("runs in another directory", "exec/a directory that is a file or missing is ErrExecFailed", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return workdirSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("has no isolation of processes", "isolation/a sandbox can neither see nor signal a process of the host", onLocal(changeInfo(func(i *atoll.Info) {
		i.Isolation = atoll.IsolationKernel
	}))),
	newMutant("has a network that reaches out", "network/without a network, nothing outside can be reached", onLocal(changeInfo(func(i *atoll.Info) { i.Caps.NetworkNone = true }))),
	newMutant("has a network that reaches the host", "network/without a network, the host cannot be reached", onLocal(changeInfo(func(i *atoll.Info) { i.Caps.NetworkNone = true }))),
	newMutant("resolves names", "network/without a network, no name resolves", onLocal(changeInfo(func(i *atoll.Info) { i.Caps.NetworkNone = true }))),
	newMutant("resolves no names", "network/with a network, names resolve", onMock(changeInfo(func(i *atoll.Info) { i.Caps.NetworkOn = true }))),
	newMutant("drops labels", "create/Status, Get and List give back what Create was asked for", onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox {
		return unlabelledSandbox{atoll.SandboxLayer{Sandbox: sb}}
	})),
	newMutant("accepts every provider name", "create/a spec may name the provider, and no other", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
		return anyNameProvider{atoll.ProviderLayer{Provider: p}}
	})),
	newMutant("never says synced", "watch/Watch replays every sandbox, then yields synced, then changes", onMock(func(_ *testing.T, p atoll.Provider) atoll.Provider {
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

// forgotten holds the files that a mutant leaks, so that the garbage collector does not close them.
var forgotten []*os.File

// orphans are the processes that a mutant leaks. TestMutant kills them at its end.
var orphans []int

// TestMutants runs the suite on each mutant in a separate process, because it must fail there.
func TestMutants(t *testing.T) {
	for _, m := range slices.Concat(mutants, claimMutants, subMutants, editMutants, wallMutants) {
		t.Run(m.name, func(t *testing.T) {
			group, promise, _ := strings.Cut(m.caughtBy, "/")
			pattern := "^TestMutant$/^" + group + "$/^" + strings.ReplaceAll(promise, " ", "_") + "$"
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", pattern, "-test.v")
			cmd.Env = append(os.Environ(), "MUTANT="+m.name, "MUTANT_DIR="+t.TempDir(), "CHECK_SLOWNESS=1") // some hang for longer than the limits only
			out, err := cmd.CombinedOutput()
			if strings.Contains(string(out), "--- SKIP: TestMutant/"+group+"/") {
				t.Skipf("this machine cannot run the promise:\n%s", out)
			}
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestMutant/"+group+"/") {
				t.Errorf("%q did not fail: %v\n%s", m.caughtBy, err, out)
			}
		})
	}
}

// TestMutant runs the suite on the mutant that the environment names.
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
	t.Cleanup(func() {
		for _, pid := range orphans {
			if orphan, err := os.FindProcess(pid); err == nil {
				_ = orphan.Kill()
			}
		}
	})
	for _, m := range slices.Concat(mutants, claimMutants, subMutants, editMutants, wallMutants) {
		if m.name == name {
			providertest.Run(t, m.open, append(m.opts, providertest.Slow(0.1), providertest.Leaks(leaks))...)
			return
		}
	}
	t.Fatalf("no mutant %q", name)
}
