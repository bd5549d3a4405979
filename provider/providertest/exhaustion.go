package providertest

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// In these promises, a hostile program uses up all resources of its sandbox. Meanwhile another sandbox
// must answer, and afterwards the attacked one can be removed with everything the program made.
var exhaustionPromises = []promise{
	{"a fork bomb exhausts only its own sandbox", []need{needIsolation, needProcs}, func(t *testing.T, h *harness) {
		h.attackResources(t, atoll.Resources{Processes: 64}, func(in *attacker) { in.startAttack(t, "forks") })
	}},
	{"a program that repeatedly takes all memory exhausts only its own sandbox", []need{needIsolation, needMemory}, func(t *testing.T, h *harness) {
		h.attackResources(t, atoll.Resources{Memory: 128 << 20}, func(in *attacker) {
			in.startAttack(t, "memory")
			in.running = nil // the kernel may kill the program for lack of memory
		})
	}},
	{"a program that fills every directory fills only its own sandbox's disk", []need{needIsolation, needDisk}, func(t *testing.T, h *harness) {
		const room, slack = 32 << 20, 16 << 20
		h.attackResources(t, atoll.Resources{Disk: room}, func(in *attacker) {
			in.checkAttackFails(t, "disk", strconv.Itoa(room+slack), "/var/tmp", "/tmp", "/root", "/run", "/opt", "/etc", "/")
		})
	}},
	{"a program that fills file systems in memory exhausts only its own sandbox", []need{needIsolation, needMemory}, func(t *testing.T, h *harness) {
		h.attackResources(t, atoll.Resources{Memory: 128 << 20}, func(in *attacker) {
			res, err := atoll.Capture(h.newContext(t), in.sb, in.attackCommand("disk", strconv.Itoa(256<<20), "/dev/shm", "/dev", "/sys/fs/cgroup", "/run/lock"), 1<<10)
			if err != nil {
				wantKind(t, "Capture", err, atoll.ErrStopped) // the whole sandbox was ended
			} else if bytes.Contains(res.Stdout, []byte("escaped")) {
				t.Errorf("%s", res.Stdout)
			}
		})
	}},
	{"a flood of unread output does not slow down other sandboxes", []need{needIsolation}, func(t *testing.T, h *harness) {
		h.attackResources(t, atoll.Resources{}, func(in *attacker) {
			in.startAttack(t, "output")
			h.startProcess(t, in.sb, in.attackCommand("output"))
		})
	}},
	{"a program that opens all descriptors exhausts only its own sandbox", []need{needIsolation}, func(t *testing.T, h *harness) {
		h.attackResources(t, atoll.Resources{}, func(in *attacker) { in.startAttack(t, "handles") })
	}},
	{"a program that takes all file watches exhausts only its own sandbox", []need{needIsolation, needFiles}, func(t *testing.T, h *harness) {
		h.attackResources(t, atoll.Resources{}, func(in *attacker) {
			in.startAttack(t, "watches")
			sb := h.plainSandbox(t)
			for ev, err := range atoll.Files(sb).Watch(h.newContext(t), ".", true) {
				if err != nil || ev.Type != atoll.FileSynced {
					t.Errorf("another sandbox's Watch: %+v, %v", ev, err)
				}
				break
			}
		})
	}},
	{"connections that a server inside keeps open do not slow down other sandboxes", []need{needIsolation, needDial}, func(t *testing.T, h *harness) {
		h.attackResources(t, atoll.Resources{}, func(in *attacker) {
			port := findFreePort(t)
			in.startAttack(t, "silent", strconv.Itoa(port))
			for i := range 200 {
				c, err := atoll.Dial(h.newContext(t), in.sb, port)
				if err != nil {
					if i < 100 {
						t.Errorf("Dial, the %dth time: %v", i, err)
					}
					break
				}
				t.Cleanup(func() { c.Close() })
			}
		})
	}},
	{"many connections out of a sandbox do not block calls to it", []need{needIsolation, needNet}, func(t *testing.T, h *harness) {
		to := listenOutside(t)[0] // no server accepts
		open := atoll.Network{Mode: atoll.NetworkOn, Allow: []string{to.Addr().String()}}
		neighbour := h.createSandbox(t, atoll.Spec{Network: open})
		h.attackSandbox(t, atoll.Spec{Network: open}, func(in *attacker) {
			in.startAttack(t, "dialout", to.String())
			h.runForOutput(t, in.sb, programCommand("echo", "still there"))
			if h.p.Info().Caps.Files {
				h.writeFile(t, in.sb, "file", "still there")
			}
			h.checkReachable(t, neighbour, listenOutside(t)[0])
		})
	}},
	{"calls return although a program stops all others in the sandbox", []need{needIsolation}, func(t *testing.T, h *harness) {
		h.attackResources(t, atoll.Resources{}, func(in *attacker) {
			in.startAttack(t, "stops")
			for what, call := range map[string]func(context.Context) error{
				"Status":    func(ctx context.Context) error { _, err := in.sb.Status(ctx); return err },
				"a command": func(ctx context.Context) error { return atoll.Run(ctx, in.sb, programCommand("true")) },
				"ReadFile":  func(ctx context.Context) error { _, err := atoll.ReadFile(ctx, in.sb, "hostile"); return err },
			} {
				runWithin(t, h.longLimit(), what, func() {
					ctx, cancel := context.WithTimeout(h.newContext(t), quietTime)
					defer cancel()
					t.Logf("%s: %v", what, call(ctx)) // it may fail, because the program that would answer is stopped
				})
			}
		})
	}},
	{"directories deeper than any path can be removed, and the sandbox with them", []need{needIsolation}, func(t *testing.T, h *harness) {
		h.attackResources(t, atoll.Resources{}, func(in *attacker) {
			const depth = 300 // 75 KiB; a path has at most 4 KiB
			h.runForOutput(t, in.sb, programCommand("mkdir", "-p", "/work/api", "/work/left", "/tmp/left"))
			in.checkAttackFails(t, "tree", "/work/api", strconv.Itoa(depth))
			for _, dir := range []string{"/work/left", "/tmp/left"} {
				in.checkAttackFails(t, "tree", dir, strconv.Itoa(depth), "closed")
			}
			if !h.p.Info().Caps.Files {
				return
			}
			ctx, cancel := context.WithTimeout(h.newContext(t), h.shortLimit())
			defer cancel()
			f := atoll.Files(in.sb)
			if _, err := f.List(ctx, "api", true); err != nil {
				wantKind(t, "List", err, atoll.ErrExhausted, atoll.ErrInvalid)
			}
			if err := f.WriteTar(ctx, "api", io.Discard); err != nil {
				wantKind(t, "WriteTar", err, atoll.ErrExhausted, atoll.ErrInvalid)
			}
			if err := f.Remove(ctx, "api", true); err != nil {
				t.Errorf("Remove of the directory: %v", err)
			}
			if _, err := f.Stat(ctx, "api"); atoll.KindOf(err) != atoll.ErrNotExist {
				t.Errorf("Stat of what was removed: %v", err)
			}
		})
	}},
}

// attackResources is like attackSandbox, for a spec with these resources.
func (h *harness) attackResources(t *testing.T, res atoll.Resources, attack func(in *attacker)) {
	t.Helper()
	h.attackSandbox(t, atoll.Spec{Resources: res}, attack)
}

// attackSandbox runs an attack in a sandbox with the spec. It checks that another sandbox keeps
// answering, and that the attacked one can be removed.
func (h *harness) attackSandbox(t *testing.T, spec atoll.Spec, attack func(in *attacker)) {
	t.Helper()
	neighbour := h.plainSandbox(t)
	in := h.newAttacker(t, h.createSandbox(t, spec))
	before := h.measureLatency(t, neighbour)
	attack(in)
	during := h.measureLatency(t, neighbour)
	in.checkAttacksRun(t)
	most := max(2*before, h.shortLimit()/5) // on a busy machine this proves little more than an answer
	t.Logf("a neighbour answers within %v, and during the attack %v", before, during)
	if during > most {
		t.Errorf("a neighbour answers within %v, and during the attack %v; want %v at most", before, during, most)
	}
	runWithin(t, h.longLimit(), "Remove", func() {
		if err := in.sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
	})
	h.runForOutput(t, neighbour, programCommand("echo", "unharmed"))
}

// measureLatency returns the median time of a command in the sandbox.
func (h *harness) measureLatency(t *testing.T, sb atoll.Sandbox) time.Duration {
	t.Helper()
	var all []time.Duration
	for i, start := 0, time.Now(); i < 11 && (i < 3 || time.Since(start) < quietTime*10); i++ {
		begun := time.Now()
		if got := h.runForOutput(t, sb, programCommand("echo", strconv.Itoa(i))); got != strconv.Itoa(i) {
			t.Errorf("echo %d printed %q", i, got)
		}
		all = append(all, time.Since(begun).Round(10*time.Microsecond))
	}
	slices.Sort(all)
	return all[len(all)/2]
}
