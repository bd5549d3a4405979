package guest

import (
	"context"
	"errors"
	"iter"
	"net"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/idletracker"
	"github.com/seed46cd37a8/atoll/internal/lazyfs"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/internal/procgroup"
	"github.com/seed46cd37a8/atoll/internal/socket"
	"github.com/seed46cd37a8/atoll/internal/userdb"
	"github.com/seed46cd37a8/atoll/server/api"
)

// A Machine is a sandbox that consists of the system around this program, which is its first
// process: it starts the others, and reaps them.
type Machine struct {
	self
	config    Config
	starter   *procgroup.Init
	processes *process.Table

	use        idletracker.Use
	startSlots chan struct{}  // has an element for each process that is being started
	bridges    map[int]Bridge // by port, for ports that stand for another address

	mu            sync.Mutex
	services      map[int]bool // the system's own processes, by PID
	fileServer    *Client      // serves the files as their user; nil until it is needed
	fileServerPID int
}

// NewMachine returns a Machine with no processes. There can be one in a program.
func NewMachine(config Config) (*Machine, error) {
	takeThreads()
	starter, err := procgroup.NewInit(!config.Offline)
	if err != nil {
		return nil, err
	}
	m := &Machine{config: config, starter: starter, processes: process.NewTable(), startSlots: make(chan struct{}, maxStarts), bridges: map[int]Bridge{}, services: map[int]bool{}}
	user, err := m.findUser("")
	if err != nil {
		return nil, atoll.E("start", config.ID, atoll.ErrInvalid, err)
	}
	if err := prepareWorkdir(config.Workdir, user); err != nil {
		return nil, err
	}
	m.self.id = config.ID
	if config.Cache != "" {
		if err := m.linkCaches(user); err != nil {
			return nil, atoll.E("start", config.ID, atoll.ErrInvalid, err)
		}
	}
	return m, nil
}

// maxStarts bounds the processes that start at once: each needs threads meanwhile.
const maxStarts = 8

// takeThreads creates threads for the runtime to retain: if it cannot get one later, it ends the
// program, and programs in the sandbox may have used up the limit.
func takeThreads() {
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), Threads/6))
	var made sync.WaitGroup
	enough := make(chan struct{})
	for range Threads {
		made.Add(1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			made.Done()
			<-enough
		}()
	}
	made.Wait()
	close(enough)
}

// prepareWorkdir creates the directory that processes start in, owned by the user. It gives the
// data volume to the user as long as the volume is empty except for mounts.
func prepareWorkdir(workdir string, user userdb.User) error {
	_, err := os.Stat(workdir)
	made := errors.Is(err, os.ErrNotExist)
	if err := os.MkdirAll(workdir, 0o755); err != nil {
		return atoll.Errorf("start", "", atoll.ErrInvalid, "workdir %q cannot be made in the sandbox: %w", workdir, err)
	}
	for _, dir := range []string{workdir, atoll.DefaultWorkdir} {
		if used, err := inUse(dir); err != nil || used || dir == workdir && !made && dir != atoll.DefaultWorkdir {
			continue
		}
		if os.Geteuid() != 0 { // there is one user only, and the creator of the volume has set its owner
			continue
		}
		if err := os.Chown(dir, int(user.UID), int(user.GID)); err != nil {
			return atoll.E("start", "", atoll.ErrInternal, err)
		}
	}
	return nil
}

// inUse reports whether dir has entries besides mount points.
func inUse(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return false, err
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	mounted := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if rest, ok := strings.CutPrefix(f[4], path.Clean(dir)+"/"); ok {
			name, _, _ := strings.Cut(rest, "/")
			mounted[name] = true
		}
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return !mounted[e.Name()] }), nil
}

// Files implements atoll.Filer. A process of the sandbox's user serves the files, with no more
// rights than any other process of that user.
func (m *Machine) Files() atoll.FS {
	return lazyfs.FS(func(ctx context.Context, op string, _ []string, fn func(context.Context, atoll.FS) error) error {
		c, err := m.fileClient(ctx)
		if err != nil {
			return atoll.E(op, m.config.ID, atoll.ErrUnavailable, err)
		}
		return fn(ctx, atoll.Files(c.Sandbox()))
	})
}

// fileClient returns the connection to the process that serves the files, and starts that process
// if it does not run.
func (m *Machine) fileClient(ctx context.Context) (*Client, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fileServer != nil && !m.fileServer.Closed() {
		return m.fileServer, nil
	}
	ours, theirs, err := socket.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	p, err := m.buildProgram(&atoll.Command{Args: []string{m.config.Self, "files", m.config.Workdir}, Dir: "/"})
	if err == nil {
		var h *procgroup.Process
		if h, err = m.starter.Start(p, process.Stdio{Stdin: theirs, Stdout: theirs, Stderr: theirs}); err == nil {
			go h.Wait()
			m.fileServerPID = h.PID()
			m.fileServer, err = Connect(ctx, ours, m.config.ID)
			return m.fileServer, err
		}
	}
	ours.Close()
	return nil, err
}

// ServeFiles serves the files of a Machine's user, in a process of that user, on the socket that is
// its stdin.
func ServeFiles(workdir string) error {
	conn, err := net.FileConn(os.Stdin)
	if err != nil {
		return err
	}
	return Serve(conn, dirfs.Options{Workdir: workdir, UID: -1, GID: -1})
}

// Dial implements atoll.Dialer.
func (m *Machine) Dial(ctx context.Context, port int) (net.Conn, error) {
	b, ok := m.bridges[port]
	if !ok {
		return m.self.Dial(ctx, port)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, b.Network, b.Address)
	if err != nil {
		return nil, atoll.Errorf("dial", m.config.ID, atoll.ErrUnavailable, "nothing listens on %s, the target of port %d: %w", b.Address, port, err)
	}
	return conn, nil
}

// Main starts the main process, and returns it.
func (m *Machine) Main(ctx context.Context) (atoll.Process, error) {
	c := &m.config
	return m.startProcess(ctx, atoll.MainProcess, &atoll.Command{Args: c.Cmd, TTY: c.TTY, OpenStdin: c.OpenStdin})
}

// Stop asks every process to end, and kills them after grace or when ctx ends.
func (m *Machine) Stop(ctx context.Context, grace time.Duration) error {
	return m.processes.Stop(ctx, grace)
}

// Status implements atoll.Sandbox.
func (m *Machine) Status(ctx context.Context) (atoll.Status, error) {
	return atoll.Status{ID: m.config.ID, Provider: "guest", State: atoll.StateRunning, Ready: true, Caps: machineCaps}, nil
}

// machineCaps are the capabilities of a Machine.
var machineCaps = atoll.Caps{Durable: atoll.DurableNone, ExitSignal: true, TTY: true, Files: true, Dial: true, Users: true}

// Process implements atoll.Sandbox.
func (m *Machine) Process(_ context.Context, id string) (atoll.Process, error) {
	return m.processes.Get(id)
}

// Processes implements atoll.ProcessLister.
func (m *Machine) Processes(context.Context) ([]atoll.ProcessStatus, error) {
	return m.processes.List(), nil
}

// Exec implements atoll.Sandbox.
func (m *Machine) Exec(ctx context.Context, cmd *atoll.Command) (atoll.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if err := cmd.CheckCaps("of this sandbox", machineCaps); err != nil {
		return nil, err
	}
	return m.startProcess(ctx, "", cmd)
}

func (m *Machine) startProcess(ctx context.Context, id string, cmd *atoll.Command) (atoll.Process, error) {
	select {
	case m.startSlots <- struct{}{}:
		defer func() { <-m.startSlots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p, err := m.buildProgram(cmd)
	if err != nil {
		return nil, err
	}
	if len(cmd.Args) == 0 {
		with := *cmd
		with.Args, cmd = p.Args, &with
	}
	var hold time.Duration
	if id == atoll.MainProcess && m.config.Held {
		hold = atoll.AutoRemoveDelay
	}
	return m.processes.StartHeld(ctx, id, cmd, hold, func(io process.Stdio) (process.Handle, error) {
		if p.TTY && p.As != nil {
			if err := io.Stdin.Chown(int(p.As.Uid), -1); err != nil { // the user of a terminal may open it again
				return nil, atoll.E("exec", m.config.ID, atoll.ErrInternal, err)
			}
		}
		killed := countOOMKills()
		h, err := m.starter.Start(p, io)
		if err != nil {
			return nil, err
		}
		return newMemoryHandle(h, killed), nil
	})
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// buildProgram returns the program to start for cmd, with its user, environment and directory.
func (m *Machine) buildProgram(cmd *atoll.Command) (*procgroup.Program, error) {
	user, err := m.findUser(cmd.User)
	if err != nil {
		return nil, atoll.E("exec", m.config.ID, atoll.ErrInvalid, err)
	}
	env := []string{"PATH=" + defaultPath, "HOME=" + user.Home}
	if host, err := os.Hostname(); err == nil {
		env = append(env, "HOSTNAME="+host)
	}
	if cmd.TTY != nil {
		env = append(env, "TERM=xterm-256color")
	}
	p := &procgroup.Program{
		Mark: procgroup.NewMark("", m.config.ID), Args: cmd.Args, Env: process.Environ(env, m.config.Env, cmd.Env),
		Dir: cmd.Dir, TTY: cmd.TTY != nil,
	}
	if !path.IsAbs(p.Dir) {
		p.Dir = path.Join(m.config.Workdir, p.Dir)
	}
	if err := m.checkDir(p.Dir); err != nil {
		return nil, err
	}
	if len(p.Args) == 0 {
		p.Args = []string{defaultShell(p.Env)}
	}
	if os.Geteuid() == 0 {
		p.As = &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: user.Groups}
	}
	return p, nil
}

func (m *Machine) checkDir(dir string) error {
	info, err := os.Stat(dir)
	problem := ""
	switch {
	case errors.Is(err, os.ErrNotExist):
		problem = "does not exist in the sandbox"
	case err != nil:
		return atoll.Errorf("exec", m.config.ID, atoll.ErrExecFailed, "workdir %q: %w", dir, err)
	case !info.IsDir():
		problem = "is not a directory"
	}
	if problem == "" {
		return nil
	}
	return atoll.Errorf("exec", m.config.ID, atoll.ErrExecFailed, "workdir %q %s", dir, problem)
}

// defaultShell returns the shell for a terminal without a command; see atoll.DetectShell.
func defaultShell(env []string) string {
	if shell := process.Lookup(env, "SHELL"); shell != "" && shell != "/bin/false" {
		return shell
	}
	if procgroup.Executable("/bin/bash") == nil {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// findUser resolves a user as docker does: without a file of accounts, users are numbers.
func (m *Machine) findUser(name string) (userdb.User, error) {
	if name == "" {
		name = m.config.User
	}
	if userdb.IsRoot(name) {
		return userdb.Root(), nil
	}
	return userdb.Find(name, readAccounts("/etc/passwd"), readAccounts("/etc/group"))
}

const accountsLimit = 1 << 20 // bytes of a passwd or group file that are read

// readAccounts reads a file of accounts; it returns nothing if that fails. It reads only regular
// files, since opening others could block for ever.
func readAccounts(name string) []byte {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	data := make([]byte, min(info.Size(), accountsLimit))
	n, _ := f.Read(data)
	return data[:n]
}

// Serve answers the requests of hosts that Greet it on connections to l, and of those behind lent
// descriptors, until l is closed. Then it closes their connections.
func (m *Machine) Serve(l *net.UnixListener) error {
	handler, err := api.NewHandler(provider{m: m}, api.Options{})
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	var hosts sync.WaitGroup
	defer handler.Close() // if there are no hosts
	defer hosts.Wait()
	defer end()
	for pause := time.Millisecond; ; {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil { // perhaps too many open files, for the moment
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		hosts.Go(func() {
			defer conn.Close()
			if host, err := acceptHost(conn); err == nil {
				_ = serveConn(ctx, host, time.Duration(m.config.Silence), handler, m.use.Counts(handler)) // after an error the host connects again
			}
		})
	}
}

// provider serves the Machine to the API as the one sandbox of a provider.
type provider struct {
	system
	m *Machine
}

// Get implements atoll.Provider: it returns the one sandbox for any id.
func (p provider) Get(context.Context, string) (atoll.Sandbox, error) { return p.m, nil }

// List implements atoll.Provider.
func (p provider) List(ctx context.Context, f atoll.Filter) ([]atoll.Status, error) {
	st, err := p.m.Status(ctx)
	if err != nil || !f.Match(st) {
		return nil, err
	}
	return []atoll.Status{st}, nil
}

// Info implements atoll.Provider.
func (p provider) Info() atoll.Info { return atoll.Info{Name: "guest", Caps: machineCaps} }

// Watch implements atoll.Provider.
func (p provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] {
	return p.system.Watch(ctx)
}

var (
	_ atoll.Provider = provider{}
	_ atoll.Filer    = (*Machine)(nil)
	_ atoll.Dialer   = (*Machine)(nil)
)
