// Package process has a table of the processes of one sandbox, running and ended: their
// output in bounded rings that clients can read again, their stdin, terminals, time
// limits and exits. The backend starts the processes.
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

// A Handle is the backend's side of a process. Its methods are safe for concurrent use,
// also after the process has ended.
type Handle interface {
	// PID returns the process's number inside the sandbox, 0 if unknown.
	PID() int
	// Wait blocks until the process itself has ended. The table calls it exactly once.
	Wait() atoll.Exit
	// Signal sends sig to the process; the table sends SIGKILL through Kill.
	Signal(sig atoll.Signal) error
	// Kill ends the process and all its descendants.
	Kill() error
}

// A Remote is a Handle of a process behind a connection.
type Remote interface {
	Handle
	// Resize sets the size of the process's terminal.
	Resize(ctx context.Context, size atoll.Size) error
}

// A Terminal is a Handle of a backend in whose kernel the table's terminal is not the
// controlling terminal of the process.
type Terminal interface {
	// Input handles the input p, and writes to the terminal's master what belongs there.
	Input(master *os.File, p []byte) error
	// Resized tells the backend that the terminal has a new size.
	Resized()
}

// DefaultEndedOutput is the default of Table.EndedOutput.
const DefaultEndedOutput = 16 << 20

const (
	keepEnded  = 100             // ended processes that a table retains
	closeGrace = 5 * time.Second // limit of Close for the exits of the processes it killed
)

// A Table has the processes of a sandbox. Its methods are safe for concurrent use.
type Table struct {
	// EndedOutput limits the bytes of output that the table retains of all ended
	// processes; 0 means DefaultEndedOutput. Beyond that, it drops the output of the
	// process that ended longest ago first, and an attachment to it reports a gap. It
	// always retains the output of the last ended process, of the main process, and
	// streams with an attachment. Do not change it after the first Start.
	EndedOutput int64

	// Remote makes Start start every process as StartRemote does. Do not change it after the
	// first Start.
	Remote bool

	// OpenTerminal, if it is not nil, opens the terminals of processes: the master, in non-blocking
	// mode, and the other side. Do not change it after the first Start.
	OpenTerminal func() (master, replica *os.File, err error)

	work sync.WaitGroup // starts in progress, pumps, deliveries

	mu     sync.Mutex
	closed bool
	procs  map[string]*process // nil while a process is being started
	order  []*process          // oldest first
	ended  []*process          // the ended processes of order, in the order of their ends

	closing sync.Once
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{procs: map[string]*process{}} }

// Start registers a process under id, or under a random short id if id is "", and calls
// start to start it. start gets the child's ends of its stdio and must have duplicated or
// donated them when it returns: the table closes its own. Start returns an error of start
// unchanged.
//
// cmd must be valid; the table retains only its streams. Kinds: ErrStopped (the table is
// closed), ErrAlreadyExists (id is taken), ErrExhausted (no pipe or terminal available).
func (t *Table) Start(ctx context.Context, id string, cmd *atoll.Command, start func(Stdio) (Handle, error)) (atoll.Process, error) {
	return t.StartHeld(ctx, id, cmd, 0, start)
}

// StartHeld is Start for a process whose reader attaches later. For the time hold, the
// table drops no output before the first attachment, and the process blocks at more than
// Command.OutputLimit.
func (t *Table) StartHeld(ctx context.Context, id string, cmd *atoll.Command, hold time.Duration, start func(Stdio) (Handle, error)) (atoll.Process, error) {
	return t.startProcess(ctx, id, cmd, hold, t.Remote, start)
}

// StartRemote is StartHeld for a process that is, with its terminal, behind a connection: start always
// gets pipes, which it owns and closes, and returns a Remote. It may have started before.
func (t *Table) StartRemote(ctx context.Context, id string, cmd *atoll.Command, hold time.Duration, start func(Stdio) (Handle, error)) (atoll.Process, error) {
	return t.startProcess(ctx, id, cmd, hold, true, start)
}

func (t *Table) startProcess(ctx context.Context, id string, cmd *atoll.Command, hold time.Duration, remote bool, start func(Stdio) (Handle, error)) (atoll.Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	id, err := t.reserveID(id)
	if err != nil {
		return nil, err
	}
	defer t.work.Done()
	io, err := t.newEnds(cmd, remote)
	if err != nil {
		t.forgetID(id)
		return nil, atoll.E("exec", id, stdioKind(err), err)
	}
	p := newProcess(id, cmd, io)
	if hold > 0 {
		p.holdOutput(hold)
	}
	att, err := p.newAttachment(&atoll.Attachment{Stdout: cmd.Stdout, Stderr: cmd.Stderr, Name: atoll.ExecAttachment})
	if err == nil {
		p.handle, err = start(io.child)
	}
	if err != nil {
		t.forgetID(id)
		io.closeAll()
		return nil, err
	}
	switch {
	case remote: // start owns the ends
	case io.master:
		p.replica = io.child.Stdin
	default:
		io.closeChild()
	}
	return t.launchProcess(p, cmd, att), nil
}

func stdioKind(err error) atoll.Kind {
	if errors.Is(err, errors.ErrUnsupported) {
		return atoll.ErrUnsupported
	}
	return atoll.ErrExhausted
}

// launchProcess starts the goroutines of p and adds p to the table.
func (t *Table) launchProcess(p *process, cmd *atoll.Command, att *attachment) atoll.Process {
	h := &handle{process: p}
	p.info.PID = p.handle.PID()
	if cmd.Timeout > 0 {
		p.killed = make(chan struct{})
		p.timer = time.AfterFunc(time.Duration(cmd.Timeout), p.killOnTimeout)
	}
	t.addProcess(p)
	t.work.Go(func() { pumpOutput(p.out, p.stdout) })
	if p.err != nil {
		t.work.Go(func() { pumpOutput(p.err, p.stderr) })
	}
	if len(att.outs) > 0 {
		delivered := make(chan struct{})
		h.delivered = delivered
		go func() {
			defer close(delivered)
			_ = att.copyOutput(context.Background()) // it detaches a writer that fails
		}()
	}
	if cmd.Stdin != nil {
		go p.feedStdin(context.Background(), cmd.Stdin, true)
	}
	go p.superviseProcess(t)
	return h
}

func newProcess(id string, cmd *atoll.Command, io *stdioEnds) *process {
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
		p.stderr.finishStream()
	}
	p.info = atoll.ProcessStatus{
		ID: id, Args: slices.Clone(cmd.Args), Dir: cmd.Dir, User: cmd.User, TTY: p.tty, Started: p.started,
	}
	return p
}

// reserveID reserves id, or a random one if it is "", and counts a start in progress.
func (t *Table) reserveID(id string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return "", atoll.E("exec", id, atoll.ErrStopped, nil)
	}
	if id == "" {
		id = t.drawID()
	}
	if _, taken := t.procs[id]; taken {
		return "", atoll.Errorf("exec", id, atoll.ErrAlreadyExists, "process %q already exists", id)
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

func (t *Table) forgetID(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.procs, id)
}

// addProcess adds p to the table. If the table was closed meanwhile, it kills p, as Close
// would have.
func (t *Table) addProcess(p *process) {
	t.mu.Lock()
	t.procs[p.id] = p
	t.order = append(t.order, p)
	closed := t.closed
	t.mu.Unlock()
	if closed {
		p.releaseRings()
		_ = p.handle.Kill()
	}
}

// retireProcess records that p has ended. If there are too many ended processes, it forgets
// the one that ended longest ago, and if their output takes too much memory, it drops the
// oldest output. It ignores the main process, whose end is the end of all others.
func (t *Table) retireProcess(p *process) {
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
		kept += q.keptBytes()
	}
	limit := cmp.Or(t.EndedOutput, DefaultEndedOutput)
	for i := 0; kept > limit && i < len(t.ended)-1; i++ {
		kept -= t.ended[i].dropOutput()
	}
}

// Get returns a process, running or ended. Kinds: ErrNotExist.
func (t *Table) Get(id string) (atoll.Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.procs[id]
	if p == nil {
		return nil, atoll.Errorf("process", id, atoll.ErrNotExist, "no process %q", id)
	}
	return &handle{process: p}, nil
}

// List returns the statuses of all processes, oldest first.
func (t *Table) List() []atoll.ProcessStatus {
	t.mu.Lock()
	procs := slices.Clone(t.order)
	t.mu.Unlock()
	list := make([]atoll.ProcessStatus, len(procs))
	for i, p := range procs {
		list[i] = p.currentStatus()
	}
	return list
}

// Running returns the number of processes that have not ended.
func (t *Table) Running() int { return len(t.runningProcesses()) }

func (t *Table) runningProcesses() []*process {
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

// Stop sends SIGTERM to every process, waits for their ends for the time grace at most, and
// closes the table. The end of ctx ends the wait.
func (t *Table) Stop(ctx context.Context, grace time.Duration) error {
	if grace > 0 {
		ctx, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		running := t.runningProcesses()
		for _, p := range running {
			_ = p.handle.Signal(atoll.SIGTERM) // it may just have ended
		}
		for _, p := range running {
			if awaitDone(ctx, p.ended) != nil {
				break
			}
		}
	}
	return t.Close()
}

// Close kills all running processes and waits until all the table's goroutines have ended,
// except those that are in a caller's Reader or Writer. A Wait in progress gets the exit, or
// ErrStopped if the table did not see one. Get and Attach still work for ended processes. A
// second Close does nothing.
func (t *Table) Close() error {
	t.closeWithin(closeGrace)
	return nil
}

func (t *Table) closeWithin(grace time.Duration) {
	t.closing.Do(func() { t.closeTable(grace) })
}

func (t *Table) closeTable(grace time.Duration) {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	var kills sync.WaitGroup
	running := t.runningProcesses()
	for _, p := range running {
		p.releaseRings()
		kills.Go(func() { _ = p.handle.Kill() }) // survivors are abandoned below
	}
	kills.Wait()
	for _, p := range running {
		if awaitDone(ctx, p.ended) != nil {
			p.abandonProcess()
		}
	}
	t.closePumps()
	t.work.Wait()
}

// closePumps ends the pumps of streams that descendants still have open.
func (t *Table) closePumps() {
	t.mu.Lock()
	procs := slices.Clone(t.order)
	t.mu.Unlock()
	for _, p := range procs {
		p.releaseRings()
		closeFiles(p.out, p.err)
	}
}
