//go:build linux

package modal_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/modal"
)

// A trouble is a fault of a call.
type trouble struct {
	what  string
	codes []codes.Code // one for each call that is tested, in turn
	lasts int          // number of calls of that method that fail; 1 means only this one
	lost  bool         // the service does the work, and the answer is lost; a stream breaks off after its first message
	felt  bool         // the caller may see the fault
	twice bool         // test the first call of each method, and the last one, too
	most  int          // number of methods that suffice, as the effect is the same with all; 0 means all
	unary bool         // skip streams, which have no token that expires
	turn  int          // 1 or 2: two troubles with a similar effect take turns at the methods, unless CHECK_ALL is set
}

var troubles = []trouble{
	{what: "Modal is away for a moment", codes: []codes.Code{codes.Unavailable}, lasts: 1, most: 3},
	{what: "the answer is lost", codes: []codes.Code{codes.Unavailable}, lasts: 1, lost: true, twice: true},
	{what: "Modal is away", codes: []codes.Code{codes.Unavailable}, lasts: 4, felt: true, turn: 1},
	{what: "Modal refuses", codes: []codes.Code{codes.ResourceExhausted, codes.DeadlineExceeded, codes.Internal}, lasts: 1, felt: true, turn: 2},
	{what: "the token has run out", codes: []codes.Code{codes.Unauthenticated}, lasts: 1, most: 2, unary: true},
	{what: "the token was revoked", codes: []codes.Code{codes.Unauthenticated}, lasts: 2, felt: true, most: 3},
}

// kinds has the kinds of errors with a code.
var kinds = map[codes.Code]atoll.Kind{
	codes.Unavailable: atoll.ErrUnavailable, codes.DeadlineExceeded: atoll.ErrUnavailable, codes.ResourceExhausted: atoll.ErrExhausted,
	codes.Unauthenticated: atoll.ErrDenied, codes.Internal: atoll.ErrInternal,
}

// A run is the execution of a function with trouble.
type run struct {
	trouble
	code codes.Code
	nth  int // the first call that fails; 0 means none

	mu      sync.Mutex
	methods []string // called so far
	hit     string   // the method whose call failed first
	left    int
}

// call is called by the server before each call.
func (r *run) call(method string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.methods = append(r.methods, method)
	if len(r.methods) == r.nth && r.unary && slices.Contains(streams, method) {
		r.nth++
	}
	switch {
	case len(r.methods) == r.nth:
		r.hit = method
	case r.hit != method || r.left == 0:
		return nil
	}
	r.left--
	switch {
	case r.lost && slices.Contains(streams, method):
		theLab.server.Cut(method, 1)
	case r.lost:
		theLab.server.DropAnswer(method)
	default:
		return status.Error(r.code, "as planned")
	}
	return nil
}

// streams lists the methods with many answers. A failed one is tried again if the SDK does not
// say why it failed.
var streams = []string{"ContainerExecGetOutput", "ImageJoinStreaming", "DictContents", "SandboxGetLogs"}

// during calls fn, and checks its error.
func (r *run) during(t *testing.T, fn func() error) error {
	t.Helper()
	theLab.server.Intercept(r.call)
	defer theLab.server.Intercept(nil)
	err := fn()
	r.mu.Lock()
	defer r.mu.Unlock()
	kind := atoll.KindOf(err)
	switch {
	case err == nil: // the call was repeated, or does not matter
	case r.hit == "", !(r.felt && kind == kinds[r.code] || slices.Contains(streams, r.hit) && kind == atoll.ErrUnavailable):
		t.Errorf("%s (%s): %v (%s)", r.hit, r.code, err, kind)
	case strings.Contains(err.Error(), "rpc error") || strings.Contains(err.Error(), "%!"):
		t.Errorf("%s (%s): %v", r.hit, r.code, err)
	}
	return err
}

// eachTrouble calls once with each trouble, or only with those in which, at each method that
// once calls. once must call its function through during, once.
func eachTrouble(t *testing.T, once func(t *testing.T, during func(func() error) error), which ...string) {
	if testing.Short() {
		t.Skip("-short")
	}
	clean := &run{}
	once(t, func(fn func() error) error { return clean.during(t, fn) })
	var first, last []int
	for i, method := range clean.methods {
		if slices.Index(clean.methods, method) == i {
			first = append(first, i+1)
		} else if !slices.Contains(clean.methods[i+1:], method) {
			last = append(last, i+1)
		}
	}
	t.Logf("the calls are %s", strings.Join(clean.methods, ", "))
	for _, tr := range troubles {
		if len(which) > 0 && !slices.Contains(which, tr.what) {
			continue
		}
		t.Run(tr.what, func(t *testing.T) {
			at := first
			if tr.twice {
				at = slices.Concat(first, last)
			}
			each := 1
			if tr.most > 0 {
				each = max(1, len(at)/tr.most)
			}
			for i, nth := range at {
				if i%each != 0 || tr.turn > 0 && len(which) == 0 && !testenv.RunAll() && i%2 == tr.turn%2 {
					continue
				}
				r := &run{trouble: tr, code: tr.codes[i/each%len(tr.codes)], nth: nth, left: tr.lasts}
				begin := time.Now()
				once(t, func(fn func() error) error { return r.during(t, fn) })
				t.Logf("%s at %s took %s", r.code, r.hit, time.Since(begin).Round(time.Millisecond))
				if t.Failed() {
					t.Fatalf("call %d, %s; the calls were %s", nth, r.hit, strings.Join(r.methods, ", "))
				}
			}
		})
	}
}

// shortenEndTimeout makes a provider not wait for long when it has lost a guest that runs.
func shortenEndTimeout(o *modal.Options) { modal.ReportEnds(o, testenv.Scale(2*time.Second)) }

// plainProvider returns a provider with a short end timeout, of an image that has already been used.
func plainProvider(t *testing.T, image string, change ...func(*modal.Options)) *modal.Provider {
	t.Helper()
	p := open(t, image, append(change, shortenEndTimeout)...)
	if _, err := p.List(t.Context(), atoll.Filter{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// Whichever call of a creation fails, the provider repeats it, or reports it and leaves
// nothing.
func TestCreateMeetsTrouble(t *testing.T) {
	image := testimage.Serve(t).Push("busybox:1", testimage.Busybox(t))
	eachTrouble(t, func(t *testing.T, during func(func() error) error) {
		p := plainProvider(t, image, func(o *modal.Options) { o.Commands = []string{"ENV RUN=" + o.Prefix} }) // an image to build
		defer p.Close()
		spec := &atoll.Spec{ID: atoll.NewID(), Name: "web", Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "data", Target: "/data"}}}
		err := during(func() error {
			_, err := p.Create(t.Context(), spec)
			return err
		})
		if err != nil {
			nothing(t, p)
			if _, err := p.Create(t.Context(), spec); err != nil {
				t.Errorf("Create afterwards: %v", err)
			}
		}
		works(t, p, spec.ID)
	})
}

// nothing checks that nothing is left of a failed creation.
func nothing(t *testing.T, p *modal.Provider) {
	t.Helper()
	if all, err := p.List(t.Context(), atoll.Filter{}); err != nil || len(all) > 0 {
		t.Errorf("List: %+v, %v; want nothing", all, err)
	}
	if names := lives(t, p); len(names) > 0 {
		t.Errorf("Modal has %q, want nothing", names)
	}
	if all, err := p.Volumes(t.Context(), ""); err != nil || len(all) > 0 {
		t.Errorf("Volumes: %+v, %v; want none", all, err)
	}
}

// works checks that a sandbox works, and removes it with its volumes.
func works(t *testing.T, p *modal.Provider, id string) {
	t.Helper()
	sb, err := p.Get(t.Context(), id)
	if err != nil {
		t.Errorf("Get: %v", err)
		return
	}
	if err := atoll.Run(t.Context(), sb, shell("true")); err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Errorf("Remove: %v", err)
	}
	for _, st := range mustVolumes(t, p) {
		if err := p.RemoveVolume(t.Context(), st.Project, st.Name); err != nil {
			t.Errorf("RemoveVolume: %v", err)
		}
	}
	nothing(t, p)
}

func mustVolumes(t *testing.T, p *modal.Provider) []atoll.Volume {
	t.Helper()
	all, err := p.Volumes(t.Context(), "")
	if err != nil {
		t.Error(err)
	}
	return all
}

// few lists the troubles that can affect the last calls; the others are the same for all calls.
var few = []string{"the answer is lost", "Modal refuses"}

// Whichever call of a stop or a start fails, the sandbox is in its old or its new state, and
// Modal has no second instance.
func TestStopAndStartMeetTrouble(t *testing.T) {
	p := provider(t, shortenEndTimeout)
	sb := created(t, p, atoll.Spec{Cmd: []string{"/bin/busybox", "sh", "-c", "trap 'echo bye; exit 3' TERM; while :; do sleep 0.1; done"}})
	state := func(t *testing.T, want ...atoll.State) {
		t.Helper()
		if st, err := sb.Status(t.Context()); err != nil || !slices.Contains(want, st.State) {
			t.Errorf("it is %s, %v; want it %s", st.State, err, want)
		}
	}
	t.Run("Stop", func(t *testing.T) {
		eachTrouble(t, func(t *testing.T, during func(func() error) error) {
			if err := sb.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if during(func() error { return sb.Stop(t.Context(), 10*time.Second) }) != nil {
				if err := sb.Stop(t.Context(), 0); err != nil {
					t.Errorf("Stop once more: %v", err)
				}
			}
			state(t, atoll.StateStopped)
			if names := lives(t, p); len(names) > 0 {
				t.Errorf("Modal has %q, want nothing", names)
			}
		}, few...)
	})
	t.Run("Start", func(t *testing.T) {
		eachTrouble(t, func(t *testing.T, during func(func() error) error) {
			if err := sb.Stop(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if during(func() error { return sb.Start(t.Context()) }) != nil {
				state(t, atoll.StateStopped)
				if names := lives(t, p); len(names) > 0 {
					t.Errorf("Modal has %q, want nothing", names)
				}
				if err := sb.Start(t.Context()); err != nil {
					t.Errorf("Start once more: %v", err)
				}
			}
			state(t, atoll.StateRunning)
			if err := atoll.Run(t.Context(), sb, shell("true")); err != nil {
				t.Errorf("Run: %v", err)
			}
			if names := lives(t, p); len(names) != 1 {
				t.Errorf("Modal has %q, want one", names)
			}
		}, few...)
	})
}

// Whichever call of a removal fails, the removal can be repeated.
func TestRemoveMeetsTrouble(t *testing.T) {
	p := provider(t, shortenEndTimeout)
	eachTrouble(t, func(t *testing.T, during func(func() error) error) {
		sb := created(t, p, atoll.Spec{Name: "web"})
		if during(func() error { return sb.Remove(t.Context(), atoll.RemoveVolumes()) }) != nil {
			if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
				t.Errorf("Remove once more: %v", err)
			}
		}
		nothing(t, p)
	}, few...)
}

// Whichever call fails of creating and removing snapshots, removing volumes, and reading the
// files of a stopped sandbox, the operation can be repeated.
func TestOtherCallsMeetTrouble(t *testing.T) {
	p := provider(t, shortenEndTimeout)
	sb := created(t, p, atoll.Spec{})
	says(t, sb, "echo work > /work/file")
	t.Run("Snapshot", func(t *testing.T) {
		eachTrouble(t, func(t *testing.T, during func(func() error) error) {
			var snap atoll.Snapshot
			err := during(func() (err error) {
				snap, err = atoll.TakeSnapshot(t.Context(), sb)
				return err
			})
			all, listErr := p.Snapshots(t.Context())
			if want := 1; listErr != nil || err == nil && len(all) != want || err != nil && len(all) != 0 {
				t.Errorf("Snapshots: %+v, %v; Snapshot: %v", all, listErr, err)
			}
			if err == nil {
				if err := p.RemoveSnapshot(t.Context(), snap.ID); err != nil {
					t.Error(err)
				}
			}
		}, few...)
	})
	t.Run("RemoveSnapshot", func(t *testing.T) {
		eachTrouble(t, func(t *testing.T, during func(func() error) error) {
			snap, err := atoll.TakeSnapshot(t.Context(), sb)
			if err != nil {
				t.Fatal(err)
			}
			if during(func() error { return p.RemoveSnapshot(t.Context(), snap.ID) }) != nil {
				if err := p.RemoveSnapshot(t.Context(), snap.ID); err != nil {
					t.Errorf("RemoveSnapshot once more: %v", err)
				}
			}
			if all, err := p.Snapshots(t.Context()); err != nil || len(all) > 0 {
				t.Errorf("Snapshots: %+v, %v; want none", all, err)
			}
		}, few...)
	})
	t.Run("RemoveVolume", func(t *testing.T) {
		eachTrouble(t, func(t *testing.T, during func(func() error) error) {
			with := created(t, p, atoll.Spec{NoStart: true, Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "data", Target: "/data"}}})
			if err := with.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
				t.Fatal(err)
			}
			if during(func() error { return p.RemoveVolume(t.Context(), "", "data") }) != nil {
				if err := p.RemoveVolume(t.Context(), "", "data"); err != nil {
					t.Errorf("RemoveVolume once more: %v", err)
				}
			}
			if all := mustVolumes(t, p); len(all) != 1 {
				t.Errorf("Volumes: %+v, want that of the sandbox", all)
			}
		}, few...)
	})
	t.Run("files of one that is stopped", func(t *testing.T) {
		if err := sb.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		eachTrouble(t, func(t *testing.T, during func(func() error) error) {
			again := reopen(t, p) // it knows of no caretaker
			defer again.Close()
			there, err := again.Get(t.Context(), sb.ID())
			if err != nil {
				t.Fatal(err)
			}
			var text []byte
			read := func() (err error) {
				text, err = atoll.ReadFile(t.Context(), there, "file")
				return err
			}
			if during(read) != nil {
				if err := read(); err != nil {
					t.Errorf("ReadFile once more: %v", err)
				}
			}
			if string(text) != "work\n" {
				t.Errorf("the file has %q", text)
			}
		}, few...)
		if names := lives(t, p); len(names) > 1 {
			t.Errorf("Modal has %q, want the last caretaker", names)
		}
	})
}

// The output of a program is complete, however often its stream breaks off.
func TestOutputIsWhole(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{})
	again := reopen(t, p)
	defer again.Close()
	there, err := again.Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	for _, after := range []int{1, 0, 2, 3, 1, 5} {
		theLab.server.Cut("ContainerExecGetOutput", after)
	}
	const lines = 20000
	got := says(t, there, fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i; i=$((i+1)); done", lines))
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i)
	}
	if got != want.String() {
		t.Errorf("%d bytes came, want %d", len(got), want.Len())
	}
	theLab.server.Disconnect()
	becomes(t, "it answers again", 20*time.Second, func() bool { return atoll.Run(t.Context(), there, shell("true")) == nil })
}

// The output of an ended main process is complete, however often its log breaks off.
func TestLogIsWhole(t *testing.T) {
	p := provider(t)
	for _, after := range []int{1, 0, 2, 1} {
		theLab.server.Cut("SandboxGetLogs", after)
	}
	const lines = 20000
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i; i=$((i+1)); done; echo late >&2; exit 3", lines)
	sb := created(t, p, atoll.Spec{Cmd: []string{"/bin/busybox", "sh", "-c", script}})
	becomes(t, "ended", 30*time.Second, func() bool {
		st, err := sb.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st.State == atoll.StateFailed && st.Exit != nil && st.Exit.Code == 3
	})
	again := reopen(t, p) // it has to read the stored output
	defer again.Close()
	there, err := again.Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	main, err := there.Process(t.Context(), atoll.MainProcess)
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr, want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i)
	}
	if err := main.Attach(t.Context(), &atoll.Attachment{Stdout: &stdout, Stderr: &stderr}); err != nil || stdout.String() != want.String() || stderr.String() != "late\n" {
		t.Errorf("%d bytes and %q are kept, %v; want %d", stdout.Len(), stderr.String(), err, want.Len())
	}
}
