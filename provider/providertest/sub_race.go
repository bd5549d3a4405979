package providertest

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// raceTime is the time for which processes try to lead calls out of each directory.
const raceTime = 3 * time.Second

// raceLinks makes calls that are confined to a directory while processes swap directories below it for
// links that lead out.
func raceLinks(t *testing.T, h *harness) {
	sb := h.plainSandbox(t)
	for _, base := range h.baseDirs() {
		r := h.newRace(t, sb, base+"/flips")
		stop := r.startRace(t, h, sb)
		for begin := time.Now(); !t.Failed() && (time.Since(begin) < raceTime || !r.sawBoth()); {
			if time.Since(begin) > h.longLimit()*3/4 {
				t.Errorf("of %d and %d reads %d and %d were denied; want both links and directories", r.reads["abs"], r.reads["rel"], r.denied["abs"], r.denied["rel"])
				break
			}
			for _, way := range []string{"abs", "rel"} {
				r.callAll(t, h, way)
			}
		}
		stop()
		t.Logf("below %s: of the reads %v, %v were denied", base, r.reads, r.denied)
		r.checkUntouched(t, h)
	}
}

// A linkRace is a confinedDir in which the names "abs" and "rel" alternate between a directory and a
// link that leads out.
type linkRace struct {
	*confinedDir
	canary string // a name that exists outside only
	reads  map[string]int
	denied map[string]int
}

// newRace makes the files of a race. It does not start the race.
func (h *harness) newRace(t *testing.T, sb atoll.Sandbox, base string) *linkRace {
	t.Helper()
	r := &linkRace{
		confinedDir: &confinedDir{base: base, all: atoll.Files(sb), in: atoll.SubFiles(atoll.Files(sb), base+"/in"), text: "secret-" + atoll.NewID()},
		canary:      "canary-" + atoll.NewID(), reads: map[string]int{}, denied: map[string]int{},
	}
	for _, name := range []string{"out/sub/marker", "out/sub/" + r.canary, "out/sub/noise/tick", "in-not/marker"} {
		h.writeFile(t, sb, path.Join(base, name), r.text)
	}
	for _, way := range []string{"abs", "rel"} {
		h.writeFile(t, sb, path.Join(base, "in", way, "sub/marker"), "own")
	}
	r.out = r.listOutside(t, h)
	return r
}

// startRace starts the processes that swap directories for links, writes outside of the directory, and
// watches below it. The watch must not report the writes. stop ends all of them.
func (r *linkRace) startRace(t *testing.T, h *harness, sb atoll.Sandbox) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(h.newContext(t))
	var done sync.WaitGroup
	var procs []atoll.Process
	for way, target := range map[string]string{"abs": r.base + "/out", "rel": "../out"} {
		cmd := scriptCommand("flip", way, target)
		cmd.Dir = r.base + "/in"
		p, _ := h.startReady(t, sb, cmd)
		procs = append(procs, p)
		done.Go(func() {
			for ctx.Err() == nil {
				for ev, err := range r.in.Watch(ctx, way, true) {
					if strings.Contains(ev.Path, r.canary) || strings.HasSuffix(ev.Path, "/tick") {
						t.Errorf("Watch yielded %+v, which is outside", ev)
					}
					if err != nil {
						r.checkAllowed(ctx, t, "Watch", err)
						break
					}
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	done.Go(func() {
		for ctx.Err() == nil {
			if _, err := r.all.Write(ctx, r.base+"/out/sub/noise/tick", strings.NewReader("x"), atoll.WriteOptions{}); err != nil && ctx.Err() == nil {
				t.Errorf("Write outside: %v", err)
			}
			time.Sleep(time.Millisecond)
		}
	})
	return func() {
		cancel()
		done.Wait()
		for _, p := range procs {
			if err := p.Signal(h.newContext(t), atoll.SIGKILL); err != nil {
				t.Errorf("Signal: %v", err)
			}
			h.waitExit(t, p)
		}
	}
}

// sawBoth reports whether reads found both the directories and the links.
func (r *linkRace) sawBoth() bool {
	for _, way := range []string{"abs", "rel"} {
		if r.denied[way] == 0 || r.reads[way] <= r.denied[way] {
			return false
		}
	}
	return true
}

// checkAllowed checks that err has one of the kinds that the race may cause.
func (r *linkRace) checkAllowed(ctx context.Context, t *testing.T, what string, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	switch atoll.KindOf(err) {
	case atoll.ErrDenied, atoll.ErrNotExist, atoll.ErrAlreadyExists, atoll.ErrInvalid, atoll.ErrConflict:
	default:
		t.Errorf("%s: %v", what, err)
	}
}

// callAll makes each call once.
func (r *linkRace) callAll(t *testing.T, h *harness, way string) {
	t.Helper()
	ctx, sub := h.newContext(t), way+"/sub"
	r.readMarkers(ctx, t, way)
	for what, err := range map[string]error{
		"Mkdir":     r.in.Mkdir(ctx, sub+"/dir", 0o700),
		"Rename to": r.renameTo(ctx, sub+"/own"),
		"ReadTar": r.in.ReadTar(ctx, sub, packEntries(t, tar.Header{Name: "packed", Typeflag: tar.TypeReg, Mode: 0o600},
			tar.Header{Name: ".", Typeflag: tar.TypeDir, Mode: 0o700}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/"})),
		"NoClobber": r.plantFile(ctx, sub+"/once", atoll.WriteOptions{NoClobber: true}),
		"Write":     r.plantFile(ctx, sub+"/new", atoll.WriteOptions{Mode: 0o600}),
		"Stat":      r.statHidden(ctx, sub+"/"+r.canary),
		"Rename of": r.in.Rename(ctx, sub+"/"+r.canary, "stolen"),
		"Remove":    r.in.Remove(ctx, sub+"/"+r.canary, false),
	} {
		r.checkAllowed(ctx, t, what, err)
	}
	for _, name := range []string{".", way, sub} {
		list, err := r.in.List(ctx, name, true)
		r.checkAllowed(ctx, t, "List", err)
		var packed bytes.Buffer
		r.checkAllowed(ctx, t, "WriteTar", r.in.WriteTar(ctx, name, &packed))
		if seen := fmt.Sprint(list) + packed.String(); strings.Contains(seen, r.canary) || strings.Contains(seen, r.text) {
			t.Errorf("List or WriteTar of %s shows files outside", name)
		}
	}
	r.checkAllowed(ctx, t, "Remove", r.in.Remove(ctx, sub, true))
	r.checkAllowed(ctx, t, "Write", r.plantFile(ctx, sub+"/marker", atoll.WriteOptions{}))
}

// readMarkers reads the marker, which exists on both sides, and the canary, which is outside. It counts
// the reads.
func (r *linkRace) readMarkers(ctx context.Context, t *testing.T, way string) {
	t.Helper()
	for _, name := range []string{"marker", r.canary} {
		got, err := r.readFile(ctx, r.in, way+"/sub/"+name)
		if strings.Contains(got, r.text) {
			t.Errorf("Read of %s/sub/%s returned the text from outside", way, name)
		}
		r.checkAllowed(ctx, t, "Read", err)
		if name == "marker" && (err == nil || atoll.KindOf(err) == atoll.ErrDenied) {
			r.reads[way]++
			if err != nil {
				r.denied[way]++
			}
		}
	}
}

// plantFile writes a file.
func (r *linkRace) plantFile(ctx context.Context, name string, opts atoll.WriteOptions) error {
	_, err := r.in.Write(ctx, name, strings.NewReader("planted"), opts)
	return err
}

// renameTo renames a new file to name.
func (r *linkRace) renameTo(ctx context.Context, name string) error {
	if err := r.plantFile(ctx, "own", atoll.WriteOptions{}); err != nil {
		return err
	}
	return r.in.Rename(ctx, "own", name)
}

// statHidden describes a file outside. It returns an error of another kind if Stat finds it.
func (r *linkRace) statHidden(ctx context.Context, name string) error {
	info, err := r.in.Stat(ctx, name)
	if err == nil {
		return atoll.Errorf("stat", name, atoll.ErrInternal, "Stat describes a file outside: %+v", info)
	}
	return err
}
