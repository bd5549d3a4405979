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

// Options say what the suite may expect of a backend.
type Options struct {
	// Spec has an image with a shell, sh, and the usual small programs.
	Spec atoll.Spec
	// NoImage is an image that does not exist; "" where images are not looked for.
	NoImage string
	// Reach is an address, HOST:PORT, that accepts connections, for programs with a
	// network; "" where there is none. SpecOn is Spec with a network.
	Reach  string
	SpecOn atoll.Spec
	// Open says that containers do not isolate: programs see the machine's files, and may
	// do what whoever starts them may.
	Open bool
	// Loopback says that programs without a network have a loopback device.
	Loopback bool
	// Held lists what the backend has of programs that have ended; nil if it cannot be told.
	Held func(t *testing.T) []string
}

// A bench runs programs on a backend.
type bench struct {
	*testing.T
	backend jobs.Backend
	opts    Options
}

// Run runs the suite. The backend stays the caller's.
func Run(t *testing.T, b jobs.Backend, opts Options) {
	for name, test := range map[string]func(*bench){
		"Program": program, "Exits": exits, "Timeout": timeout, "Output": output, "Artifacts": artifacts, "Limits": limits, "Install": install,
		"Absent": absent, "Refused": refused, "Network": network, "Cancel": cancel, "Apart": apart, "ManyAtOnce": many, "Privileges": privileges,
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

// job is a shell's script as a job, with limits that are enough.
func (b *bench) job(script string, args ...string) *jobs.Job {
	return &jobs.Job{
		Spec: b.opts.Spec, Files: []jobs.File{{Name: "main.sh", Data: []byte(script)}}, Args: append([]string{"sh", "main.sh"}, args...),
		Timeout: atoll.Duration(time.Minute), MaxOutput: 64 << 10, MaxFiles: 10, MaxFileSize: 64 << 10, MaxContent: 256 << 10,
	}
}

// run runs a job that has a result.
func (b *bench) run(job *jobs.Job) *jobs.Result {
	b.Helper()
	r, err := b.backend.Run(b.Context(), job)
	if err != nil {
		b.Fatalf("%v: %v", job.Args, err)
	}
	return r
}

// prints checks what a script prints when all goes well.
func (b *bench) prints(job *jobs.Job, want string) *jobs.Result {
	b.Helper()
	r := b.run(job)
	if got := string(r.Stdout.Data); got != want || !r.Exit.Success() || r.NotInstalled {
		b.Errorf("it printed %q and ended with %s, want %q; stderr %q", got, r.Exit, want, r.Stderr.Data)
	}
	return r
}

func program(b *bench) {
	job := b.job(`cat data/in; printf '%s,' "$@"; echo "$COLOUR" "$EMPTY".; echo oops >&2`, "a b", "", "$HOME", "ä")
	job.Files = append(job.Files, jobs.File{Name: "data/in", Data: []byte("first\x00\xff\n")})
	job.Env = []string{"COLOUR=blue green", "EMPTY="}
	r := b.prints(job, "first\x00\xff\na b,,$HOME,ä,blue green .\n")
	if got := string(r.Stderr.Data); got != "oops\n" {
		b.Errorf("stderr is %q", got)
	}
	if len(r.Artifacts) != 0 || r.More || r.Unread != "" {
		b.Errorf("it has left %+v, more: %v, unread: %q", r.Artifacts, r.More, r.Unread)
	}
	if !b.opts.Open {
		b.prints(b.job("pwd"), atoll.DefaultWorkdir+"\n")
	}
	job = b.job(`echo "$COLOUR $SIZE"`)
	job.Spec.Env, job.Env = append(job.Spec.Env, "COLOUR=red", "SIZE=1"), []string{"COLOUR=blue"}
	b.prints(job, "blue 1\n")
	b.prints(b.job(`[ -t 0 ] && echo tty; cat; env | grep -iE '^(otel|dagger|trace)' ; true`), "") // nobody is at the other end
}

func exits(b *bench) {
	for script, want := range map[string]atoll.Exit{
		"exit 0":           {},
		"exit 3":           {Code: 3},
		"exit 255":         {Code: 255},
		"kill -TERM $$":    {Code: 143, Signal: atoll.SIGTERM},
		"kill -KILL $$":    {Code: 137, Signal: atoll.SIGKILL},
		"sh -c 'exit 124'": {Code: 124},
	} {
		got := b.run(b.job(script)).Exit
		if got.Reason = ""; got.Code != want.Code || got.TimedOut {
			b.Errorf("%s: %+v, want %+v", script, got, want)
		}
	}
}

// When its time is over, a program is killed with all that it has started, whatever that
// does with signals.
func timeout(b *bench) {
	job := b.job(`trap '' TERM INT HUP; sh -c 'trap "" TERM; sleep 300; echo late' & (setsid sh -c 'trap "" TERM HUP; sleep 300' &) ; echo begun; echo half >f; sleep 300`)
	limit := 5 * time.Second // which is enough to begin, except on a busy machine
	job.Timeout = atoll.Duration(limit)
	began := time.Now()
	r := b.run(job)
	for r.Exit.TimedOut && len(r.Artifacts) == 0 && limit < time.Minute { // it has not come to the file: it is given more time
		limit *= 4
		job.Timeout, began = atoll.Duration(limit), time.Now()
		r = b.run(job)
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

func output(b *bench) {
	job := b.job(`i=0; while [ $i -lt 300 ]; do printf '\000\377\303'; i=$((i+1)); done; head -c 100000 /dev/zero >&2; exit 7`)
	job.MaxOutput = 1000
	r := b.run(job)
	if r.Exit.Code != 7 || !bytes.Equal(r.Stdout.Data, bytes.Repeat([]byte("\x00\xff\xc3"), 300)) || r.Stdout.Cut {
		b.Errorf("it ended with %s and printed %d bytes, cut: %v", r.Exit, len(r.Stdout.Data), r.Stdout.Cut)
	}
	if !bytes.Equal(r.Stderr.Data, make([]byte, 1000)) || !r.Stderr.Cut {
		b.Errorf("stderr is %d bytes, cut: %v", len(r.Stderr.Data), r.Stderr.Cut)
	}
}

// left lists what a program has left, as NAME=CONTENT or NAME:SIZE.
func left(r *jobs.Result) (list []string) {
	for _, a := range r.Artifacts {
		if a.Read {
			list = append(list, a.Path+"="+string(a.Data))
		} else {
			list = append(list, fmt.Sprintf("%s:%d", a.Path, a.Size))
		}
	}
	return list
}

func (b *bench) leaves(job *jobs.Job, want ...string) *jobs.Result {
	b.Helper()
	r := b.run(job)
	if got := fmt.Sprintf("%q", left(r)); got != fmt.Sprintf("%q", want) || !r.Exit.Success() {
		b.Errorf("it ended with %s and has left %s, want %q; stderr %q", r.Exit, got, want, r.Stderr.Data)
	}
	return r
}

func artifacts(b *bench) {
	job := b.job(`mkdir -p sub/deep __pycache__ && printf 'x\000\377' >sub/deep/made && echo more >>changed && : >empty && rm gone
		echo c >__pycache__/c && ln -s /etc/passwd link && ln -s changed link2 && ln -s nowhere link3 && mkfifo pipe && echo '` + "ü" + `' >'sub/ü x'`)
	for _, name := range []string{"kept", "changed", "gone"} {
		job.Files = append(job.Files, jobs.File{Name: name, Data: []byte(name + "\n")})
	}
	b.leaves(job, "changed=changed\nmore\n", "empty=", "sub/deep/made=x\x00\xff", "sub/ü x=ü\n")
}

func limits(b *bench) {
	job := b.job(`head -c 101 /dev/zero | tr '\0' a >large; head -c 100 /dev/zero | tr '\0' b >most; head -c 60 /dev/zero | tr '\0' c >no_room; echo d >small; echo e >too_many; echo f >too_many2`)
	job.MaxFileSize, job.MaxContent, job.MaxFiles = 100, 150, 4
	if r := b.leaves(job, "large:101", "most="+strings.Repeat("b", 100), "no_room:60", "small=d\n"); !r.More || r.Unread != "" {
		b.Errorf("it has left more: %v, unread: %q", r.More, r.Unread)
	}
}

// Packages are installed first, with what they need; what was installed is the
// program's to use, and none of what it has made.
func install(b *bench) {
	job := b.job(`cat package`)
	job.Install = []string{"sh", "-c", "echo installing; echo installed >package"}
	if r := b.prints(job, "installed\n"); len(r.Artifacts) != 0 {
		b.Errorf("it has left %q", left(r))
	}
	job = b.job(`echo run >&2`)
	job.Install = []string{"sh", "-c", "echo cannot >&2; exit 9"}
	if r := b.run(job); !r.NotInstalled || r.Exit.Code != 9 || string(r.Stderr.Data) != "cannot\n" || len(r.Artifacts) != 0 {
		b.Errorf("what could not be installed: %+v", r)
	}
}

func (b *bench) fails(job *jobs.Job, want atoll.Kind) {
	b.Helper()
	r, err := b.backend.Run(b.Context(), job)
	if atoll.KindOf(err) != want {
		b.Errorf("%v: %+v, %v, want %q", job.Args, r, err, want)
	}
}

func absent(b *bench) {
	job := b.job("")
	job.Args = []string{"no-such-program"}
	b.fails(job, atoll.ErrCommandNotFound)
	job.Args, job.Else = []string{"no-such-program", "-c", "echo instead"}, "sh"
	b.prints(job, "instead\n")
	job.Args, job.Install = []string{"sh", "main.sh"}, []string{"no-such-installer"}
	b.fails(job, atoll.ErrCommandNotFound)
}

// What cannot be has an error of its own, and is no sandbox that has gone.
func refused(b *bench) {
	job := b.job("")
	job.Spec.Workdir = "relative"
	b.fails(job, atoll.ErrInvalid)
	if b.opts.NoImage == "" {
		b.Skip("images are not looked for")
	}
	job = b.job("")
	job.Spec.Image = b.opts.NoImage
	b.fails(job, atoll.ErrNotExist)
}

func network(b *bench) {
	if b.opts.Reach == "" {
		b.Skip("nothing can be reached")
	}
	host, port, _ := strings.Cut(b.opts.Reach, ":")
	try := fmt.Sprintf(`nc -w 5 %s %s </dev/null >/dev/null 2>&1 && echo reached || echo not`, host, port)
	b.prints(b.job(try), "not\n")
	if b.opts.Loopback {
		b.prints(b.job(`ping -c 1 127.0.0.1 >/dev/null 2>&1; (nc -l -p 4000 >got & sleep 1; echo hello | nc -w 2 127.0.0.1 4000); cat got`), "hello\n")
	}
	job := b.job(try)
	job.Spec = b.opts.SpecOn
	b.prints(job, "reached\n")
}

// Who breaks off has his program killed, and is not kept waiting.
func cancel(b *bench) {
	ctx, stop := context.WithTimeout(b.Context(), 4*time.Second)
	defer stop()
	began := time.Now()
	r, err := b.backend.Run(ctx, b.job(`sleep 300`))
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > testenv.Scale(2*time.Minute) {
		b.Errorf("%+v, %v after %s", r, err, time.Since(began))
	}
	ended, end := context.WithCancel(b.Context())
	end()
	if r, err := b.backend.Run(ended, b.job(`true`)); !errors.Is(err, context.Canceled) {
		b.Errorf("%+v, %v", r, err)
	}
}

// Nothing stays for the next one, and the same program runs as often as it is called.
func apart(b *bench) {
	job := b.job(`cat kept 2>/dev/null; cat /proc/sys/kernel/random/uuid | tee kept`)
	if !b.opts.Open {
		job = b.job(`cat /tmp/kept kept 2>/dev/null; date >/tmp/kept; cat /proc/sys/kernel/random/uuid | tee kept`)
	}
	seen := map[string]bool{}
	for range 3 {
		r := b.run(job)
		text := string(r.Stdout.Data)
		if len(text) != 37 || seen[text] || len(r.Artifacts) != 1 {
			b.Errorf("it printed %q, after %v, and has left %q", text, seen, left(r))
		}
		seen[text] = true
	}
}

func many(b *bench) {
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			b.prints(b.job(`echo "$1" >mine; sleep 0.1; cat mine; ls | wc -l`, fmt.Sprint(i)), fmt.Sprintf("%d\n2\n", i))
		})
	}
	all.Wait()
}

// A program has no privileges, and cannot get at who has.
func privileges(b *bench) {
	if b.opts.Open {
		b.Skip("it has those of whoever starts it")
	}
	b.prints(b.job(`grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr -d '\t'`),
		"CapPrm:0000000000000000\nCapEff:0000000000000000\nCapBnd:0000000000000000\nNoNewPrivs:1\n")
}
