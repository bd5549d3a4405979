//go:build linux

package supervised_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/internal/socket"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// A world is the engine of these tests: a process in namespaces and a root file system of
// its own, in which a guest starts all other processes. Like a virtual machine, and unlike
// a sentry, it knows of processes and files only inside.
type world struct {
	*supervisor.GuestProcesses
	box   *supervisor.Sandbox
	about plan
	root  string

	cmd    *exec.Cmd
	line   io.Closer     // connection to the guest for calls that the API does not have
	orders *json.Encoder // sends to the guest
	heard  *json.Decoder // receives from it
	guest  *guest.Client
	exited chan struct{} // closed when the guest has ended
}

// A plan is the part of a job that is specific to a world.
type plan struct {
	Greeting string `json:"greeting"`
}

// The argv[0]s of this program's other roles.
const (
	supervisorArgv0 = "atoll-kept"
	probeArgv0      = "atoll-kept-probe"
	guestArgv0      = "atoll-kept-guest"
)

func init() {
	supervisor.TakeOver(supervisor.Kind{Argv0: supervisorArgv0, Isolation: atoll.IsolationContainer, New: newWorld})
	switch {
	case os.Args[0] == probeArgv0:
		exitWith(supervisor.TryMounts())
	case os.Args[0] == guestArgv0:
		exitWith(runGuest(os.Args[1]))
	case len(os.Args) == 3 && os.Args[0] == selfName && os.Args[1] == "files":
		exitWith(guest.ServeFiles(os.Args[2]))
	}
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func newWorld(b *supervisor.Sandbox, log io.Writer) (supervisor.Engine, error) {
	exited := make(chan struct{})
	w := &world{GuestProcesses: supervisor.NewGuestProcesses(b, exited), box: b, root: filepath.Join(b.Job.Run, "root"), exited: exited}
	if err := json.Unmarshal(b.Job.Engine, &w.about); err != nil {
		return nil, err
	}
	_, err := fmt.Fprintln(log, w.about.Greeting)
	return w, err
}

func (w *world) Name() string { return "the world" }

func (w *world) Steps() []supervisor.Step {
	return []supervisor.Step{{Name: "root", Do: w.makeRoot}, {Name: "guest", Do: w.startGuest}}
}

// hostDirs are the machine's directories in a world; selfName and socketName are the paths
// of this program and of its guest's socket there.
var hostDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"}

const selfName, socketName = "/self", "/socket"

func (w *world) makeRoot(context.Context, *supervisor.Undo) error {
	if err := os.Mkdir(w.root, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("world", w.root, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{"proc", "dev/pts", "dev/shm", "root", "tmp"} {
		if err := os.MkdirAll(filepath.Join(w.root, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(w.root, "tmp"), 0o1777); err != nil {
		return err
	}
	for _, path := range hostDirs {
		info, err := os.Lstat(path)
		if err != nil {
			continue
		}
		if info.Mode()&os.ModeSymlink != 0 {
			to, err := os.Readlink(path)
			if err = errors.Join(err, os.Symlink(to, w.root+path)); err != nil {
				return err
			}
			continue
		}
		if err := w.bindMount(path, path, true); err != nil {
			return err
		}
	}
	for _, device := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := w.bindMount("/dev/"+device, "/dev/"+device, false); err != nil {
			return err
		}
	}
	if err := unix.Mount("devpts", w.root+"/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620"); err != nil {
		return err
	}
	if err := os.Symlink("pts/ptmx", w.root+"/dev/ptmx"); err != nil {
		return err
	}
	for _, m := range w.box.Job.Mounts {
		if m.Source == "" {
			if err := errors.Join(os.MkdirAll(w.root+m.Target, 0o755), unix.Mount("tmpfs", w.root+m.Target, "tmpfs", 0, fmt.Sprintf("mode=1777,size=%d", cmp.Or(m.Size, 64<<20)))); err != nil {
				return err
			}
		} else if err := w.bindMount(m.Source, m.Target, m.ReadOnly); err != nil {
			return err
		}
	}
	self, err := os.Executable() // by its path: it was started from a mount of another namespace
	if err != nil {
		return err
	}
	return w.bindMount(self, selfName, true)
}

// bindMount mounts source at target.
func (w *world) bindMount(source, target string, readOnly bool) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	at := filepath.Join(w.root, target)
	if info.IsDir() {
		err = os.MkdirAll(at, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(at), 0o755); err == nil {
		err = os.WriteFile(at, nil, 0o644)
	}
	if err == nil {
		err = unix.Mount(source, at, "", unix.MS_BIND, "")
	}
	if err == nil && readOnly {
		err = unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if err != nil {
		return fmt.Errorf("show %s: %w", source, err)
	}
	return nil
}

func (w *world) startGuest(_ context.Context, undo *supervisor.Undo) error {
	spec := &w.box.Job.Spec
	config, err := json.Marshal(guest.Config{
		ID: spec.ID, Workdir: spec.Workdir, User: spec.User, Env: spec.Environ(), Self: selfName,
		Cmd: spec.Cmd, TTY: spec.TTY, OpenStdin: spec.OpenStdin, Held: spec.AutoRemove,
	})
	if err != nil {
		return err
	}
	w.cmd = exec.Command(selfName)
	w.cmd.Args = []string{guestArgv0, string(config)}
	w.cmd.Env, w.cmd.Dir = []string{}, "/"
	w.cmd.SysProcAttr = &unix.SysProcAttr{
		Chroot: w.root, Pdeathsig: unix.SIGKILL, Setsid: true,
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	ours, theirs, err := socket.Pair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	w.cmd.Stdin = theirs
	if err := w.cmd.Start(); err != nil {
		return errors.Join(err, ours.Close())
	}
	w.line, w.orders, w.heard = ours, json.NewEncoder(ours), json.NewDecoder(ours)
	go func() {
		_ = w.cmd.Wait()
		close(w.exited)
	}()
	undo.Add(func() { _ = w.Destroy() })
	if _, err := w.readAnswer(); err != nil { // waits until the guest is up
		return err
	}
	conn, err := net.Dial("unix", w.root+socketName)
	if err == nil {
		err = guest.Greet(conn)
	}
	if err == nil {
		w.guest, err = guest.Connect(context.Background(), conn, spec.ID)
	}
	if err != nil {
		return err
	}
	w.box.Watch()
	return nil
}

// An order is a request to a guest, and its answer.
type order struct {
	Stop  bool          `json:"stop,omitempty"` // else start the main process
	Grace time.Duration `json:"grace,omitempty"`
	Kind  atoll.Kind    `json:"kind,omitempty"` // "" if it was done
	Text  string        `json:"text,omitempty"`
}

func (w *world) readAnswer() (order, error) {
	var o order
	if err := w.heard.Decode(&o); err != nil {
		return o, fmt.Errorf("%w: %w", errGone, err)
	}
	if o.Kind != "" {
		return o, atoll.Errorf("exec", w.box.ID(), o.Kind, "%s", o.Text)
	}
	return o, nil
}

// sendOrder sends the guest an order and waits until it is carried out.
func (w *world) sendOrder(o order) error {
	if err := w.orders.Encode(o); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	_, err := w.readAnswer()
	return err
}

var errGone = errors.New("the guest has gone")

// runGuest is the guest's main function.
func runGuest(text string) error {
	var config guest.Config
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := bringUpLoopback(); err != nil {
		return err
	}
	answer := json.NewEncoder(os.Stdin) // a socket
	say := func(err error) error {
		o := order{Kind: atoll.KindOf(err)}
		if err != nil {
			o.Text = err.Error()
			if e := (*atoll.Error)(nil); errors.As(err, &e) && e.Err != nil {
				o.Text = e.Err.Error()
			}
		}
		return answer.Encode(o)
	}
	m, err := guest.NewMachine(config)
	if err != nil {
		return say(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketName, Net: "unix"})
	if err != nil {
		return say(err)
	}
	go func() { _ = m.Serve(l) }()
	if err := say(nil); err != nil {
		return err
	}
	for orders := json.NewDecoder(os.Stdin); ; {
		var o order
		if err := orders.Decode(&o); err != nil {
			return err
		}
		if o.Stop {
			err = m.Stop(context.Background(), o.Grace)
		} else {
			_, err = m.Main(context.Background())
		}
		if err := say(err); err != nil {
			return err
		}
	}
}

// bringUpLoopback brings up the loopback interface, the only one.
func bringUpLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

func (w *world) Exited() <-chan struct{} { return w.exited }

func (w *world) DeathReason() string { return "as all worlds do" }

func (w *world) Exec(ctx context.Context, id string, cmd *atoll.Command) (atoll.Process, error) {
	if id == atoll.MainProcess {
		if err := w.sendOrder(order{}); err != nil {
			return nil, err
		}
		return w.Process(ctx, id)
	}
	p, err := w.guest.Sandbox().Exec(ctx, cmd)
	if err != nil {
		return nil, w.Explain(ctx, "exec", err)
	}
	return w.WrapProcess(p), nil
}

func (w *world) Process(ctx context.Context, id string) (atoll.Process, error) {
	p, err := w.guest.Sandbox().Process(ctx, id)
	if left := w.Left(); left != nil {
		return left.Get(id)
	}
	if err != nil {
		return nil, w.Explain(ctx, "process", err)
	}
	return w.WrapProcess(p), nil
}

func (w *world) Processes(ctx context.Context) ([]atoll.ProcessStatus, error) {
	list, err := atoll.Processes(ctx, w.guest.Sandbox())
	if left := w.Left(); left != nil {
		return left.List(), nil
	}
	return w.WrapList(ctx, list, err)
}

// Running implements supervisor.Engine: it counts all processes except the guest itself and
// those of its processes that serve files.
func (w *world) Running(context.Context) (n int, err error) {
	us, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", w.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	entries, err := os.ReadDir("/proc")
	for _, e := range entries {
		ns, _ := os.Readlink("/proc/" + e.Name() + "/ns/pid")
		args, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline") // empty for a process that has ended
		if ns == us && len(args) > 0 && !bytes.HasPrefix(args, []byte(guestArgv0)) && !bytes.HasPrefix(args, []byte(selfName)) {
			n++
		}
	}
	return n, err
}

func (w *world) Files() atoll.FS {
	return atoll.Files(w.guest.Sandbox())
}

func (w *world) Dial(ctx context.Context, port int) (net.Conn, error) {
	return atoll.Dial(ctx, w.guest.Sandbox(), port)
}

func (w *world) Usage(context.Context) (atoll.Usage, error) {
	return atoll.Usage{}, errors.ErrUnsupported
}

func (w *world) Pause(context.Context) error  { return errors.ErrUnsupported }
func (w *world) Resume(context.Context) error { return errors.ErrUnsupported }
func (w *world) Frozen() bool                 { return false }
func (w *world) Snapshot(context.Context, string, atoll.SnapshotOptions) error {
	return errors.ErrUnsupported
}

func (w *world) Terminate(grace time.Duration) error {
	if grace == 0 {
		return nil
	}
	return w.sendOrder(order{Stop: true, Grace: grace})
}

// Keep implements supervisor.Engine: a world saves only volumes.
func (w *world) Keep() error { return nil }

func (w *world) Kill() { _ = w.cmd.Process.Kill() }

// mainTimeout bounds the time of asking a guest for its main process; keptOutput is the
// number of bytes of output that are kept of it.
var mainTimeout, keptOutput = testenv.Scale(2 * time.Second), 1 << 20

// Destroy implements supervisor.Engine. Only the inside knows the main process, so it is
// asked first.
func (w *world) Destroy() error {
	if w.guest != nil && !w.Ended() {
		w.rememberMain()
	}
	w.Kill()
	<-w.exited
	if w.guest != nil {
		_ = w.guest.Close()
	}
	return w.line.Close()
}

func (w *world) rememberMain() {
	if len(w.box.Job.Spec.Cmd) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), mainTimeout)
	defer cancel()
	_ = w.sendOrder(order{Stop: true}) // so that it has an exit, too
	p, err := w.guest.Sandbox().Process(ctx, atoll.MainProcess)
	if err != nil {
		return
	}
	list, err := atoll.Processes(ctx, w.guest.Sandbox())
	if err != nil {
		return
	}
	for _, st := range list {
		if st.ID != atoll.MainProcess || st.Exit == nil {
			continue
		}
		var out, errs tail
		err := p.Attach(ctx, &atoll.Attachment{Stdout: &out, Stderr: &errs, NoFollow: true})
		if err != nil {
			w.box.Log.Warn("main process", "err", err)
		}
		w.Remember(process.Ended(st, out.last, errs.last))
	}
}

// A tail stores the last bytes that were written to it.
type tail struct{ last []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.last = append(t.last, p...)
	t.last = t.last[max(0, len(t.last)-keptOutput):]
	return len(p), nil
}

func (w *world) SaveMain(path string) error {
	table := w.Left()
	if table == nil {
		return atoll.Errorf("save", w.box.ID(), atoll.ErrNotExist, "nothing is known of the main process")
	}
	return table.Save(path, atoll.MainProcess)
}

func (w *world) Unmount() error {
	err := unix.Unmount(w.root, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

var _ supervisor.Engine = (*world)(nil)
