package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A fake is a Provider of one sandbox whose commands are Go functions. The function fields override
// methods.
type fake struct {
	info   atoll.Info
	create func(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error)
	list   func(ctx context.Context, f atoll.Filter) ([]atoll.Status, error)
	watch  func(ctx context.Context) iter.Seq2[atoll.Event, error]
	box    *fakeBox

	removeSnapshot func(ctx context.Context, id string) error
}

const fakeID = "0123456789abcdef0123456789abcdef"

// fakeDuration is the Duration in the exit of each process of a fake.
const fakeDuration = atoll.Duration(time.Second)

func newFake() *fake {
	box := &fakeBox{id: fakeID, procs: map[string]*fakeProc{}}
	return &fake{info: atoll.Info{Name: "fake", Caps: atoll.Caps{Durable: atoll.DurableNone, Files: true}}, box: box}
}

func (f *fake) Info() atoll.Info { return f.info }
func (f *fake) Close() error     { return nil }

func (f *fake) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	if f.create != nil {
		return f.create(ctx, spec)
	}
	return f.box, nil
}

func (f *fake) Get(_ context.Context, id string) (atoll.Sandbox, error) {
	if norm, err := atoll.NormalizeID(id); err != nil || norm != f.box.id {
		return nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	return f.box, nil
}

func (f *fake) List(ctx context.Context, filter atoll.Filter) ([]atoll.Status, error) {
	if f.list != nil {
		return f.list(ctx, filter)
	}
	st, _ := f.box.Status(ctx)
	return []atoll.Status{st}, nil
}

func (f *fake) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	if f.watch != nil {
		return f.watch(ctx)
	}
	return func(yield func(atoll.Event, error) bool) {
		if yield(atoll.Event{Type: atoll.EventSynced}, nil) {
			<-ctx.Done()
			yield(atoll.Event{}, ctx.Err())
		}
	}
}

func (f *fake) Snapshots(context.Context) ([]atoll.Snapshot, error) {
	return nil, atoll.E("snapshots", "", atoll.ErrUnsupported, nil)
}

func (f *fake) RemoveSnapshot(ctx context.Context, id string) error {
	if f.removeSnapshot != nil {
		return f.removeSnapshot(ctx, id)
	}
	return atoll.E("remove snapshot", id, atoll.ErrUnsupported, nil)
}

type fakeBox struct {
	id string
	fs atoll.FS

	dial   func(ctx context.Context, port int) (net.Conn, error)
	remove func(ctx context.Context, opts atoll.RemoveOptions) error

	snapshot func(ctx context.Context, opts atoll.SnapshotOptions) (atoll.Snapshot, error)

	mu      sync.Mutex
	created time.Time
	procs   map[string]*fakeProc
	next    int
	calls   []string
}

// setCreated sets the time at which the sandbox was created.
func (b *fakeBox) setCreated(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.created = at
}

func (b *fakeBox) ID() string { return b.id }

func (b *fakeBox) Status(context.Context) (atoll.Status, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return atoll.Status{ID: b.id, State: atoll.StateRunning, Provider: "fake", Created: b.created}, nil
}

func (b *fakeBox) recordCall(what string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, what)
	return nil
}

func (b *fakeBox) Start(context.Context) error { return b.recordCall("start") }
func (b *fakeBox) Stop(_ context.Context, grace time.Duration) error {
	return b.recordCall("stop " + grace.String())
}

func (b *fakeBox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if b.remove != nil {
		return b.remove(ctx, atoll.ApplyRemoveOptions(opts...))
	}
	return b.recordCall("remove")
}

func (b *fakeBox) Snapshot(ctx context.Context, opts ...atoll.SnapshotOption) (atoll.Snapshot, error) {
	if b.snapshot != nil {
		return b.snapshot(ctx, atoll.ApplySnapshotOptions(opts...))
	}
	return atoll.Snapshot{}, atoll.E("snapshot", b.id, atoll.ErrUnsupported, nil)
}

func (b *fakeBox) Files() atoll.FS { return b.fs }

func (b *fakeBox) Dial(ctx context.Context, port int) (net.Conn, error) {
	if b.dial == nil {
		return nil, atoll.E("dial", b.id, atoll.ErrUnsupported, nil)
	}
	return b.dial(ctx, port)
}

// commands are the programs of a fake sandbox. They end with ctx.
var commands = map[string]func(ctx context.Context, p *fakeProc, args []string, in io.Reader, out, errOut io.Writer) int{
	"true": func(context.Context, *fakeProc, []string, io.Reader, io.Writer, io.Writer) int { return 0 },
	"echo": func(_ context.Context, _ *fakeProc, args []string, _ io.Reader, out, _ io.Writer) int {
		for i, a := range args {
			if i > 0 {
				io.WriteString(out, " ")
			}
			io.WriteString(out, a)
		}
		io.WriteString(out, "\n")
		return 0
	},
	"err": func(_ context.Context, _ *fakeProc, args []string, _ io.Reader, _, errOut io.Writer) int {
		io.WriteString(errOut, args[0])
		return 1
	},
	"exit": func(_ context.Context, _ *fakeProc, args []string, _ io.Reader, _, _ io.Writer) int {
		n, _ := strconv.Atoi(args[0])
		return n
	},
	"cat": func(_ context.Context, _ *fakeProc, _ []string, in io.Reader, out, _ io.Writer) int {
		if _, err := io.Copy(out, in); err != nil {
			return 1
		}
		return 0
	},
	"sleep": func(ctx context.Context, _ *fakeProc, _ []string, _ io.Reader, _, _ io.Writer) int {
		<-ctx.Done()
		return 137
	},
	// zeros N writes N bytes in chunks of 32 KiB and counts them in p.wrote.
	"zeros": func(ctx context.Context, p *fakeProc, args []string, _ io.Reader, out, _ io.Writer) int {
		n, _ := strconv.Atoi(args[0])
		chunk := make([]byte, 32<<10)
		for n > 0 {
			m, err := out.Write(chunk[:min(n, len(chunk))])
			p.mu.Lock()
			p.wrote += m
			p.mu.Unlock()
			if err != nil {
				return 141
			}
			n -= m
		}
		return 0
	},
}

func (b *fakeBox) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	run := commands[cmd.Args[0]]
	if run == nil {
		return nil, atoll.Errorf("exec", b.id, atoll.ErrCommandNotFound, "%s: command not found", cmd.Args[0])
	}
	life, kill := context.WithCancel(context.Background())
	p := &fakeProc{kill: kill, done: make(chan struct{})}
	b.mu.Lock()
	b.next++
	p.id = "p" + strconv.Itoa(b.next)
	b.procs[p.id] = p
	b.mu.Unlock()
	out, errOut, in := cmd.Stdout, cmd.Stderr, cmd.Stdin
	if out == nil {
		out = &p.stdout
	}
	if errOut == nil {
		errOut = io.Discard
	}
	if in == nil {
		in = bytes.NewReader(nil)
	}
	args := cmd.Args[1:]
	go func() {
		p.exit = atoll.Exit{Code: run(life, p, args, in, out, errOut), Duration: fakeDuration}
		close(p.done)
	}()
	return p, nil
}

func (b *fakeBox) Process(_ context.Context, id string) (atoll.Process, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.procs[id]; p != nil {
		return p, nil
	}
	return nil, atoll.E("process", id, atoll.ErrNotExist, nil)
}

type fakeProc struct {
	id     string
	kill   context.CancelFunc
	done   chan struct{}
	exit   atoll.Exit
	stdout bytes.Buffer // output of a command without streams; read it after done is closed
	attach func(ctx context.Context, a *atoll.Attachment) error
	signal func(ctx context.Context, sig atoll.Signal) error // runs before Signal

	mu      sync.Mutex
	wrote   int
	signals []atoll.Signal
	sizes   []atoll.Size
}

func (p *fakeProc) ID() string { return p.id }

func (p *fakeProc) Wait(ctx context.Context) (atoll.Exit, error) {
	select {
	case <-p.done:
		return p.exit, nil
	case <-ctx.Done():
		return atoll.Exit{}, ctx.Err()
	}
}

func (p *fakeProc) Signal(ctx context.Context, sig atoll.Signal) error {
	if p.signal != nil {
		if err := p.signal(ctx, sig); err != nil {
			return err
		}
	}
	select {
	case <-p.done:
		return atoll.E("signal", p.id, atoll.ErrStopped, nil)
	default:
	}
	p.mu.Lock()
	p.signals = append(p.signals, sig)
	p.mu.Unlock()
	if sig == atoll.SIGKILL {
		p.kill()
	}
	return nil
}

func (p *fakeProc) Resize(_ context.Context, size atoll.Size) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sizes = append(p.sizes, size)
	return nil
}

func (p *fakeProc) Attach(ctx context.Context, a *atoll.Attachment) error {
	if p.attach == nil {
		return errors.New("not attachable")
	}
	return p.attach(ctx, a)
}
