// Package process keeps the processes of one sandbox, running and ended: their
// output in bounded rings that can be read again, their stdin, terminals, time
// limits and exits. How a process is started is its backend's business.
//
//	table := process.NewTable()
//	defer table.Close()
//	p, err := table.Start(ctx, "", cmd, func(io process.Stdio) (process.Handle, error) {
//		// start it with io as its stdin, stdout and stderr
//	})
package process

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Handle is a process as its backend sees it. All methods may be called at
// once from many goroutines, also after the process has ended.
type Handle interface {
	// PID is the process's number inside the sandbox, 0 if unknown.
	PID() int
	// Wait blocks until the process itself has ended. It is called exactly once.
	Wait() atoll.Exit
	// Signal sends sig to the process; SIGKILL is sent through Kill.
	Signal(sig atoll.Signal) error
	// Kill ends the process and all its descendants.
	Kill() error
}

// A Remote is a Handle of a Table whose processes are elsewhere.
type Remote interface {
	Handle
	// Resize tells the process's terminal its size.
	Resize(ctx context.Context, size atoll.Size) error
}

// A Terminal is a Handle of a backend whose kernel does not see the table's
// terminal as the process's controlling one.
type Terminal interface {
	// Input types p: it writes to the terminal's master what belongs there.
	Input(master *os.File, p []byte) error
	// Resized is told that the terminal has a new size.
	Resized()
}

// DefaultEndedOutput is the EndedOutput of a Table that names none.
const DefaultEndedOutput = 16 << 20

const (
	keepEnded  = 100             // processes that are remembered after their end
	closeGrace = 5 * time.Second // how long Close waits for the exits of what it killed
)

// A Table holds the processes of a sandbox. All methods may be called at once
// from many goroutines.
type Table struct {
	// EndedOutput is how many bytes of output are kept of all processes that
	// have ended; 0 means DefaultEndedOutput. Beyond that, the output of the one
	// that ended longest ago goes first, and who attaches to it is told of a
	// gap. That of the last one and of the main process is kept whatever it is,
	// as is what somebody is attached to. It must not be changed after the first
	// Start.
	EndedOutput int64

	// Remote says that the processes are elsewhere, and their terminals too: start
	// gets pipes in any case, which are its own to close from then on, and returns
	// a Remote. It must not be changed after the first Start.
	Remote bool

	work sync.WaitGroup // starts in progress, pumps, deliveries

	mu     sync.Mutex
	closed bool
	procs  map[string]*process // nil values are being started
	order  []*process          // oldest first
	ended  []*process          // those of order that have, in the order of their ends

	closing sync.Once
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{procs: map[string]*process{}} }

// Start registers a process under id, or a random short one when id is "", and
// calls start to bring it to life. start gets the child's ends of its stdio
// and must have duplicated or donated them when it returns: the table closes
// its own. What start returns as an error is returned as it is.
//
// cmd must be valid; it is not kept, but for its streams. Kinds: ErrStopped
// (the table is closed), ErrAlreadyExists (id is taken), ErrExhausted (no
// pipe or terminal to be had).
func (t *Table) Start(ctx context.Context, id string, cmd *atoll.Command, start func(Stdio) (Handle, error)) (atoll.Process, error) {
	return t.StartHeld(ctx, id, cmd, 0, start)
}

// StartHeld is Start for a process whose reader comes after it was started: for
// so long, none of its output is dropped before somebody is attached to it, and
// the process waits when more than Command.OutputLimit is there.
func (t *Table) StartHeld(ctx context.Context, id string, cmd *atoll.Command, hold time.Duration, start func(Stdio) (Handle, error)) (atoll.Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	id, err := t.reserve(id)
	if err != nil {
		return nil, err
	}
	defer t.work.Done()
	io, err := newEnds(cmd, t.Remote)
	if err != nil {
		t.forget(id)
		return nil, atoll.E("exec", id, stdioKind(err), err)
	}
	p := newProcess(id, cmd, io)
	if hold > 0 {
		p.hold(hold)
	}
	att, err := p.attach(&atoll.Attachment{Stdout: cmd.Stdout, Stderr: cmd.Stderr, Name: atoll.ExecAttachment})
	if err == nil {
		p.handle, err = start(io.child)
	}
	if err != nil {
		t.forget(id)
		io.closeAll()
		return nil, err
	}
	switch {
	case t.Remote: // they are its own
	case io.master:
		p.replica = io.child.Stdin
	default:
		io.closeChild()
	}
	return t.launch(p, cmd, att), nil
}

func stdioKind(err error) atoll.Kind {
	if errors.Is(err, errors.ErrUnsupported) {
		return atoll.ErrUnsupported
	}
	return atoll.ErrExhausted
}

// launch starts the goroutines that look after p and enters it in the table.
func (t *Table) launch(p *process, cmd *atoll.Command, att *attachment) atoll.Process {
	h := &handle{process: p}
	p.info.PID = p.handle.PID()
	if cmd.Timeout > 0 {
		p.killed = make(chan struct{})
		p.timer = time.AfterFunc(time.Duration(cmd.Timeout), p.expire)
	}
	t.enter(p)
	t.work.Go(func() { pump(p.out, p.stdout) })
	if p.err != nil {
		t.work.Go(func() { pump(p.err, p.stderr) })
	}
	if len(att.outs) > 0 {
		delivered := make(chan struct{})
		h.delivered = delivered
		go func() {
			defer close(delivered)
			_ = att.copy(context.Background()) // a writer that fails is detached
		}()
	}
	if cmd.Stdin != nil {
		go p.feed(context.Background(), cmd.Stdin, true)
	}
	go p.run(t)
	return h
}

func newProcess(id string, cmd *atoll.Command, io *ends) *process {
	limit := int64(cmd.OutputLimit)
	if limit <= 0 {
		limit = atoll.DefaultOutputLimit
	}
	p := &process{
		id:      id,
		started: time.Now(),
		openIn:  cmd.OpenStdin,
		stdout:  newRing(limit),
		stderr:  newRing(limit),
		out:     io.out,
		err:     io.err,
		in:      io.in,
		tty:     cmd.TTY != nil,
		master:  io.master,
		exited:  make(chan struct{}),
		ended:   make(chan struct{}),
	}
	if p.err == nil {
		p.stderr.finish()
	}
	p.info = atoll.ProcessStatus{
		ID: id, Args: slices.Clone(cmd.Args), Dir: cmd.Dir, User: cmd.User, TTY: p.tty, Started: p.started,
	}
	return p
}

// reserve takes id, or draws one, and counts a start in progress.
func (t *Table) reserve(id string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return "", atoll.E("exec", id, atoll.ErrStopped, nil)
	}
	if id == "" {
		id = t.drawID()
	}
	if _, taken := t.procs[id]; taken {
		return "", atoll.Errorf("exec", id, atoll.ErrAlreadyExists, "process %q is there already", id)
	}
	t.procs[id] = nil
	t.work.Add(1)
	return id, nil
}

func (t *Table) drawID() string {
	for {
		var b [6]byte
		rand.Read(b[:]) // never fails
		id := hex.EncodeToString(b[:])
		if _, taken := t.procs[id]; !taken {
			return id
		}
	}
}

func (t *Table) forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.procs, id)
}

// enter makes p known. One that was started while the table was being closed
// is killed, as Close would have.
func (t *Table) enter(p *process) {
	t.mu.Lock()
	t.procs[p.id] = p
	t.order = append(t.order, p)
	closed := t.closed
	t.mu.Unlock()
	if closed {
		p.release()
		_ = p.handle.Kill()
	}
}

// retire notes that p has ended. It forgets the one that ended longest ago when
// there are too many, and what the oldest ones have printed when that is too
// much. The main process is not among them: all others end because it does.
func (t *Table) retire(p *process) {
	if p.id == atoll.MainProcess {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = append(t.ended, p)
	if len(t.ended) > keepEnded {
		oldest := t.ended[0]
		t.ended = slices.Delete(t.ended, 0, 1)
		t.order = slices.DeleteFunc(t.order, func(q *process) bool { return q == oldest })
		delete(t.procs, oldest.id)
	}
	var kept int64
	for _, q := range t.ended {
		kept += q.kept()
	}
	limit := cmp.Or(t.EndedOutput, DefaultEndedOutput)
	for i := 0; kept > limit && i < len(t.ended)-1; i++ {
		kept -= t.ended[i].empty()
	}
}

// Get finds a process, running or ended. Kinds: ErrNotExist.
func (t *Table) Get(id string) (atoll.Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.procs[id]
	if p == nil {
		return nil, atoll.Errorf("process", id, atoll.ErrNotExist, "no process %q", id)
	}
	return &handle{process: p}, nil
}

// List describes all processes, oldest first.
func (t *Table) List() []atoll.ProcessStatus {
	t.mu.Lock()
	procs := slices.Clone(t.order)
	t.mu.Unlock()
	list := make([]atoll.ProcessStatus, len(procs))
	for i, p := range procs {
		list[i] = p.status()
	}
	return list
}

// Running counts the processes that have not ended.
func (t *Table) Running() int { return len(t.running()) }

func (t *Table) running() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*process
	for _, p := range t.order {
		if p.exit.Load() == nil {
			list = append(list, p)
		}
	}
	return list
}

// Stop asks every process to end with SIGTERM, gives them grace to do so, and
// closes the table. When ctx ends, so does the grace.
func (t *Table) Stop(ctx context.Context, grace time.Duration) error {
	if grace > 0 {
		ctx, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		running := t.running()
		for _, p := range running {
			_ = p.handle.Signal(atoll.SIGTERM) // it may just have ended
		}
		for _, p := range running {
			if await(ctx, p.ended) != nil {
				break
			}
		}
	}
	return t.Close()
}

// Close kills what runs and waits until all the table's goroutines have ended,
// except those that are in a caller's Reader or Writer. A Wait in progress
// gets the exit, or ErrStopped when none was seen. What has ended can still be
// found and read. A second Close does nothing.
func (t *Table) Close() error {
	t.closeWithin(closeGrace)
	return nil
}

func (t *Table) closeWithin(grace time.Duration) {
	t.closing.Do(func() { t.close(grace) })
}

func (t *Table) close(grace time.Duration) {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	var kills sync.WaitGroup
	running := t.running()
	for _, p := range running {
		p.release()
		kills.Go(func() { _ = p.handle.Kill() }) // what survives is abandoned below
	}
	kills.Wait()
	for _, p := range running {
		if await(ctx, p.ended) != nil {
			p.abandon()
		}
	}
	t.closePumps()
	t.work.Wait()
}

// closePumps ends the pumps that descendants keep alive.
func (t *Table) closePumps() {
	t.mu.Lock()
	procs := slices.Clone(t.order)
	t.mu.Unlock()
	for _, p := range procs {
		p.release()
		closeFiles(p.out, p.err)
	}
}
