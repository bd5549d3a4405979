// Package jobstest is the conformance suite of jobs.Backend: every backend returns the same
// result for the same program.
package jobstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// Options tell the suite the properties of a backend.
type Options struct {
	// Spec has an image with a shell, sh, and the usual small programs.
	Spec atoll.Spec
	// NoImage is the name of a missing image; "" if the backend doesn't look for
	// images.
	NoImage string
	// Reach is an address, HOST:PORT, that accepts connections, for programs with a
	// network; "" if there is none. SpecOn is Spec with a network.
	Reach  string
	SpecOn atoll.Spec
	// Open tells that containers do not isolate: programs see the machine's files, and
	// have the permissions of the user who starts them.
	Open bool
	// Loopback tells that programs without a network have a loopback device.
	Loopback bool
	// Held lists the backend's resources of ended programs; nil if they cannot be
	// listed.
	Held func(t *testing.T) []string
}

// A bench runs programs on a backend.
type bench struct {
	*testing.T
	backend jobs.Backend
	opts    Options
}

// Run runs the suite. The caller keeps the backend.
func Run(t *testing.T, b jobs.Backend, opts Options) {
	for name, test := range map[string]func(*bench){
		"Program": checkProgram, "Exits": checkExits, "Timeout": checkTimeout, "Output": checkOutput, "Artifacts": checkArtifacts, "Limits": checkLimits, "Install": checkInstall,
		"Absent": checkMissingProgram, "Refused": checkInvalidJobs, "Network": checkNetwork, "Cancel": checkCancel, "Apart": checkIsolation, "ManyAtOnce": checkConcurrency, "Privileges": checkPrivileges,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&bench{t, b, opts})
		})
	}
	t.Cleanup(func() {
		if opts.Held == nil {
			return
		}
		var held []string
		for end := time.Now().Add(testenv.Scale(10 * time.Second)); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if held = opts.Held(t); len(held) == 0 {
				return
			}
		}
		t.Errorf("the backend still has %v", held)
	})
}

// newJob returns a shell script as a job with sufficient limits.
func (b *bench) newJob(script string, args ...string) *jobs.Job {
	return &jobs.Job{
		Spec: b.opts.Spec, Files: []jobs.File{{Name: "main.sh", Data: []byte(script)}}, Args: append([]string{"sh", "main.sh"}, args...),
		Timeout: atoll.Duration(time.Minute), MaxOutput: 64 << 10, MaxFiles: 10, MaxFileSize: 64 << 10, MaxContent: 256 << 10,
	}
}

// runJob runs a job that has a result.
func (b *bench) runJob(job *jobs.Job) *jobs.Result {
	b.Helper()
	r, err := b.backend.Run(b.Context(), job)
	if err != nil {
		b.Fatalf("%v: %v", job.Args, err)
	}
	return r
}

// wantOutput checks the output of a script that succeeds.
func (b *bench) wantOutput(job *jobs.Job, want string) *jobs.Result {
	b.Helper()
	r := b.runJob(job)
	if got := string(r.Stdout.Data); got != want || !r.Exit.Success() || r.NotInstalled {
		b.Errorf("it printed %q and ended with %s, want %q; stderr %q", got, r.Exit, want, r.Stderr.Data)
	}
	return r
}

func checkProgram(b *bench) {
	job := b.newJob(`cat data/in; printf '%s,' "$@"; echo "$COLOUR" "$EMPTY".; echo oops >&2`, "a b", "", "$HOME", "ä")
	job.Files = append(job.Files, jobs.File{Name: "data/in", Data: []byte("first\x00\xff\n")})
	job.Env = []string{"COLOUR=blue green", "EMPTY="}
	r := b.wantOutput(job, "first\x00\xff\na b,,$HOME,ä,blue green .\n")
	if got := string(r.Stderr.Data); got != "oops\n" {
		b.Errorf("stderr is %q", got)
	}
	if len(r.Artifacts) != 0 || r.More || r.Unread != "" {
		b.Errorf("it has left %+v, more: %v, unread: %q", r.Artifacts, r.More, r.Unread)
	}
	if !b.opts.Open {
		b.wantOutput(b.newJob("pwd"), atoll.DefaultWorkdir+"\n")
	}
	job = b.newJob(`echo "$COLOUR $SIZE"`)
	job.Spec.Env, job.Env = append(job.Spec.Env, "COLOUR=red", "SIZE=1"), []string{"COLOUR=blue"}
	b.wantOutput(job, "blue 1\n")
	b.wantOutput(b.newJob(`[ -t 0 ] && echo tty; cat; env | grep -iE '^(otel|dagger|trace)' ; true`), "") // stdin is empty
}

func checkExits(b *bench) {
	for script, want := range map[string]atoll.Exit{
		"exit 0":           {},
		"exit 3":           {Code: 3},
		"exit 255":         {Code: 255},
		"kill -TERM $$":    {Code: 143, Signal: atoll.SIGTERM},
		"kill -KILL $$":    {Code: 137, Signal: atoll.SIGKILL},
		"sh -c 'exit 124'": {Code: 124},
	} {
		got := b.runJob(b.newJob(script)).Exit
		if got.Reason = ""; got.Code != want.Code || got.TimedOut {
			b.Errorf("%s: %+v, want %+v", script, got, want)
		}
	}
}

// A program that exceeds its time limit is killed with all its descendants, whatever
// they do with signals.
func checkTimeout(b *bench) {
	job := b.newJob(`trap '' TERM INT HUP; sh -c 'trap "" TERM; sleep 300; echo late' & (setsid sh -c 'trap "" TERM HUP; sleep 300' &) ; echo begun; echo half >f; sleep 300`)
	limit := 5 * time.Second // enough time to start, except on a busy machine
	job.Timeout = atoll.Duration(limit)
	began := time.Now()
	r := b.runJob(job)
	for r.Exit.TimedOut && len(r.Artifacts) == 0 && limit < time.Minute { // it has not written the file yet: allow more time
		limit *= 4
		job.Timeout, began = atoll.Duration(limit), time.Now()
		r = b.runJob(job)
	}
	if !r.Exit.TimedOut || r.Exit.Code != 124 || string(r.Stdout.Data) != "begun\n" || r.Took < limit || r.Took > limit+testenv.Scale(time.Minute) {
		b.Errorf("it ended with %+v after %s, and printed %q", r.Exit, r.Took, r.Stdout.Data)
	}
	if took := time.Since(began); took > limit+testenv.Scale(2*time.Minute) {
		b.Errorf("that took %s", took)
	}
	if len(r.Artifacts) != 1 || string(r.Artifacts[0].Data) != "half\n" {
		b.Errorf("it has left %+v", r.Artifacts)
	}
}

func checkOutput(b *bench) {
	job := b.newJob(`i=0; while [ $i -lt 300 ]; do printf '\000\377\303'; i=$((i+1)); done; head -c 100000 /dev/zero >&2; printf end >&2; exit 7`)
	job.MaxOutput = 1000
	r := b.runJob(job)
	if r.Exit.Code != 7 || !bytes.Equal(r.Stdout.Data, bytes.Repeat([]byte("\x00\xff\xc3"), 300)) || r.Stdout.Omitted > 0 {
		b.Errorf("it ended with %s and printed %d bytes, %d more were left out", r.Exit, len(r.Stdout.Data), r.Stdout.Omitted)
	}
	if want := append(make([]byte, 497), "end"...); !bytes.Equal(r.Stderr.Data, make([]byte, 500)) || !bytes.Equal(r.Stderr.End, want) || r.Stderr.Omitted != 99003 {
		b.Errorf("stderr is %d bytes and %q, %d bytes were left out", len(r.Stderr.Data), r.Stderr.End, r.Stderr.Omitted)
	}
}

// listArtifacts lists a program's files, as NAME=CONTENT or NAME:SIZE.
func listArtifacts(r *jobs.Result) (list []string) {
	for _, a := range r.Artifacts {
		if a.Read {
			list = append(list, a.Path+"="+string(a.Data))
		} else {
			list = append(list, fmt.Sprintf("%s:%d", a.Path, a.Size))
		}
	}
	return list
}

func (b *bench) wantArtifacts(job *jobs.Job, want ...string) *jobs.Result {
	b.Helper()
	r := b.runJob(job)
	if got := fmt.Sprintf("%q", listArtifacts(r)); got != fmt.Sprintf("%q", want) || !r.Exit.Success() {
		b.Errorf("it ended with %s and has left %s, want %q; stderr %q", r.Exit, got, want, r.Stderr.Data)
	}
	return r
}

func checkArtifacts(b *bench) {
	job := b.newJob(`mkdir -p sub/deep __pycache__ && printf 'x\000\377' >sub/deep/made && echo more >>changed && : >empty && rm gone
		echo c >__pycache__/c && ln -s /etc/passwd link && ln -s changed link2 && ln -s nowhere link3 && mkfifo pipe && echo '` + "ü" + `' >'sub/ü x'`)
	for _, name := range []string{"kept", "changed", "gone"} {
		job.Files = append(job.Files, jobs.File{Name: name, Data: []byte(name + "\n")})
	}
	b.wantArtifacts(job, "changed=changed\nmore\n", "empty=", "sub/deep/made=x\x00\xff", "sub/ü x=ü\n")
}

func checkLimits(b *bench) {
	job := b.newJob(`head -c 101 /dev/zero | tr '\0' a >large; head -c 100 /dev/zero | tr '\0' b >most; head -c 60 /dev/zero | tr '\0' c >no_room; echo d >small; echo e >too_many; echo f >too_many2`)
	job.MaxFileSize, job.MaxContent, job.MaxFiles = 100, 150, 4
	if r := b.wantArtifacts(job, "large:101", "most="+strings.Repeat("b", 100), "no_room:60", "small=d\n"); !r.More || r.Unread != "" {
		b.Errorf("it has left more: %v, unread: %q", r.More, r.Unread)
	}
}

// Packages are installed first; the program can use them, and they aren't among its
// artifacts.
func checkInstall(b *bench) {
	job := b.newJob(`cat package`)
	job.Install = []string{"sh", "-c", "echo installing; echo installed >package"}
	if r := b.wantOutput(job, "installed\n"); len(r.Artifacts) != 0 {
		b.Errorf("it has left %q", listArtifacts(r))
	}
	job = b.newJob(`echo run >&2`)
	job.Install = []string{"sh", "-c", "echo cannot >&2; exit 9"}
	if r := b.runJob(job); !r.NotInstalled || r.Exit.Code != 9 || string(r.Stderr.Data) != "cannot\n" || len(r.Artifacts) != 0 {
		b.Errorf("a failed installation: %+v", r)
	}
}

func (b *bench) wantError(job *jobs.Job, want atoll.Kind) {
	b.Helper()
	r, err := b.backend.Run(b.Context(), job)
	if atoll.KindOf(err) != want {
		b.Errorf("%v: %+v, %v, want %q", job.Args, r, err, want)
	}
}

func checkMissingProgram(b *bench) {
	job := b.newJob("")
	job.Args = []string{"no-such-program"}
	b.wantError(job, atoll.ErrCommandNotFound)
	job.Args, job.Else = []string{"no-such-program", "-c", "echo instead"}, "sh"
	b.wantOutput(job, "instead\n")
	job.Args, job.Install = []string{"sh", "main.sh"}, []string{"no-such-installer"}
	b.wantError(job, atoll.ErrCommandNotFound)
}

// Impossible jobs have errors of their own, different from a vanished sandbox.
func checkInvalidJobs(b *bench) {
	job := b.newJob("")
	job.Spec.Workdir = "relative"
	b.wantError(job, atoll.ErrInvalid)
	if b.opts.NoImage == "" {
		b.Skip("the backend doesn't look for images")
	}
	job = b.newJob("")
	job.Spec.Image = b.opts.NoImage
	b.wantError(job, atoll.ErrNotExist)
}

func checkNetwork(b *bench) {
	if b.opts.Reach == "" {
		b.Skip("there is no address to reach")
	}
	host, port, _ := strings.Cut(b.opts.Reach, ":")
	try := fmt.Sprintf(`nc -w 5 %s %s </dev/null >/dev/null 2>&1 && echo reached || echo not`, host, port)
	b.wantOutput(b.newJob(try), "not\n")
	if b.opts.Loopback {
		b.wantOutput(b.newJob(`ping -c 1 127.0.0.1 >/dev/null 2>&1; nc -l -p 4000 >got & for i in 1 2 3 4 5 6 7 8 9; do echo hello | nc -w 2 127.0.0.1 4000 && break; sleep 1; done; wait; cat got`), "hello\n")
	}
	job := b.newJob(try)
	job.Spec = b.opts.SpecOn
	b.wantOutput(job, "reached\n")
}

// Cancelling a job kills its program, and returns soon.
func checkCancel(b *bench) {
	ctx, stop := context.WithTimeout(b.Context(), 4*time.Second)
	defer stop()
	began := time.Now()
	r, err := b.backend.Run(ctx, b.newJob(`sleep 300`))
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > testenv.Scale(2*time.Minute) {
		b.Errorf("%+v, %v after %s", r, err, time.Since(began))
	}
	ended, end := context.WithCancel(b.Context())
	end()
	if r, err := b.backend.Run(ended, b.newJob(`true`)); !errors.Is(err, context.Canceled) {
		b.Errorf("%+v, %v", r, err)
	}
}

// Jobs share no files, and equal programs run as often as they are called.
func checkIsolation(b *bench) {
	job := b.newJob(`cat kept 2>/dev/null; cat /proc/sys/kernel/random/uuid | tee kept`)
	if !b.opts.Open {
		job = b.newJob(`cat /tmp/kept kept 2>/dev/null; date >/tmp/kept; cat /proc/sys/kernel/random/uuid | tee kept`)
	}
	seen := map[string]bool{}
	for range 3 {
		r := b.runJob(job)
		text := string(r.Stdout.Data)
		if len(text) != 37 || seen[text] || len(r.Artifacts) != 1 {
			b.Errorf("it printed %q, after %v, and has left %q", text, seen, listArtifacts(r))
		}
		seen[text] = true
	}
}

func checkConcurrency(b *bench) {
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			b.wantOutput(b.newJob(`echo "$1" >mine; sleep 0.1; cat mine; ls | wc -l`, fmt.Sprint(i)), fmt.Sprintf("%d\n2\n", i))
		})
	}
	all.Wait()
}

// A program has no privileges, and no access to privileged processes.
func checkPrivileges(b *bench) {
	if b.opts.Open {
		b.Skip("programs have the privileges of the user who starts them")
	}
	b.wantOutput(b.newJob(`grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr -d '\t'`),
		"CapPrm:0000000000000000\nCapEff:0000000000000000\nCapBnd:0000000000000000\nNoNewPrivs:1\n")
}
