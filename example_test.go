package atoll_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// Use any provider; that of package gvisor isolates.
func Example() {
	ctx := context.Background()
	p, err := mock.New(mock.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(ctx, &atoll.Spec{Name: "web"})
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Remove(ctx, atoll.RemoveVolumes())
	out, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"echo", "hello"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", out)
	// Output: hello
}

// A command that exits with a non-zero code is an *ExitError. Other failures are an *Error with a
// kind.
func ExampleRun() {
	ctx := context.Background()
	p, err := mock.New(mock.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(ctx, &atoll.Spec{})
	if err != nil {
		log.Fatal(err)
	}
	var exit *atoll.ExitError
	err = atoll.Run(ctx, sb, &atoll.Command{Args: []string{"sh", "-c", "exit 3"}})
	if errors.As(err, &exit) {
		fmt.Println(exit.Exit)
	}
	if err := sb.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		log.Fatal(err)
	}
	err = atoll.Run(ctx, sb, &atoll.Command{Args: []string{"true"}})
	fmt.Println(errors.Is(err, atoll.ErrNotFound))
	// Output:
	// exited with code 3
	// true
}

// openSandbox returns a new sandbox, its provider, and a function that closes the provider. Commands in it are Go
// functions; those of package gvisor are isolated programs.
func openSandbox() (p atoll.Provider, sb atoll.Sandbox, done func()) {
	p, err := mock.New(mock.Options{})
	if err != nil {
		log.Fatal(err)
	}
	sb, err = p.Create(context.Background(), &atoll.Spec{Name: "web", TTL: atoll.Duration(24 * time.Hour), Labels: map[string]string{"team": "search"}})
	if err != nil {
		log.Fatal(err)
	}
	return p, sb, func() {
		if err := p.Close(); err != nil {
			log.Fatal(err)
		}
	}
}

// Capture returns the output, up to a limit, and how the command ended.
func ExampleCapture() {
	_, sb, done := openSandbox()
	defer done()
	res, err := atoll.Capture(context.Background(), sb, &atoll.Command{Args: []string{"sh", "-c", "echo out; exit 2"}}, 1000)
	fmt.Printf("%q %d %v\n", res.Stdout, res.Code, err)
	// Output: "out\n" 2 <nil>
}

// Output is for commands that should succeed.
func ExampleOutput() {
	_, sb, done := openSandbox()
	defer done()
	out, err := atoll.Output(context.Background(), sb, &atoll.Command{Args: []string{"cat"}, Stdin: strings.NewReader("through a pipe\n")})
	fmt.Printf("%s%v\n", out, err)
	// Output:
	// through a pipe
	// <nil>
}

func ExampleWriteFile() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	if err := atoll.WriteFile(ctx, sb, "notes/today.txt", []byte("buy milk\n"), 0o644); err != nil {
		log.Fatal(err)
	}
	out, err := atoll.Output(ctx, sb, &atoll.Command{Args: []string{"cat", "notes/today.txt"}})
	fmt.Printf("%s%v\n", out, err)
	// Output:
	// buy milk
	// <nil>
}

func ExampleReadFile() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	if err := atoll.WriteFile(ctx, sb, "f", []byte("made inside"), 0o600); err != nil {
		log.Fatal(err)
	}
	data, err := atoll.ReadFile(ctx, sb, "/work/f")
	fmt.Printf("%s %v\n", data, err)
	// Output: made inside <nil>
}

// A file system lists, moves and removes files.
func ExampleFiles() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	files := atoll.Files(sb)
	if _, err := files.Write(ctx, "a/one", strings.NewReader("1"), atoll.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	if err := files.Rename(ctx, "a/one", "a/uno"); err != nil {
		log.Fatal(err)
	}
	list, err := files.List(ctx, ".", true)
	for _, f := range list {
		fmt.Println(f.Path, f.Type, f.Size)
	}
	fmt.Println(err)
	// Output:
	// /work/a directory 0
	// /work/a/uno file 1
	// <nil>
}

// SubFiles confines names to a directory.
func ExampleSubFiles() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	if err := atoll.WriteFile(ctx, sb, "out/report", []byte("fine"), 0o644); err != nil {
		log.Fatal(err)
	}
	out := atoll.SubFiles(atoll.Files(sb), "out")
	info, err := out.Stat(ctx, "report")
	fmt.Println(info.Size, err)
	_, err = out.Stat(ctx, "../../etc/passwd")
	fmt.Println(err != nil)
	// Output:
	// 4 <nil>
	// true
}

// A file that is open can be read and written at any place.
func ExampleOpenFile() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	if err := atoll.WriteFile(ctx, sb, "f", []byte("0123456789"), 0o644); err != nil {
		log.Fatal(err)
	}
	f, err := atoll.OpenFile(ctx, atoll.Files(sb), "f", atoll.OpenOptions{Read: true, Write: true})
	if errors.Is(err, atoll.ErrUnsupported) {
		fmt.Println("this provider has no open files")
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(ctx, []byte("xx"), 3); err != nil {
		log.Fatal(err)
	}
	buf := make([]byte, 10)
	n, err := f.ReadAt(ctx, buf, 0)
	fmt.Printf("%s %v\n", buf[:n], err)
	// Output: 012xx56789 <nil>
}

// Exec starts a command and returns at once. A process outlives the program that started it.
func ExampleSandbox_exec() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	var out strings.Builder
	p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sh", "-c", "echo working; exit 4"}, Stdout: &out})
	if err != nil {
		log.Fatal(err)
	}
	exit, err := p.Wait(ctx)
	fmt.Printf("%s%d %v\n", out.String(), exit.Code, err)
	// Output:
	// working
	// 4 <nil>
}

// Attach reads the output that a process has written so far, and what follows.
func ExampleProcess_attach() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"echo", "from the beginning"}})
	if err != nil {
		log.Fatal(err)
	}
	again, err := sb.Process(ctx, p.ID()) // by another program, for example
	if err != nil {
		log.Fatal(err)
	}
	err = again.Attach(ctx, &atoll.Attachment{Stdout: os.Stdout})
	fmt.Println(err)
	// Output:
	// from the beginning
	// <nil>
}

// Input can be written later, by any program.
func ExampleCommand_openStdin() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"cat"}, OpenStdin: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Attach(ctx, &atoll.Attachment{Stdin: strings.NewReader("hello\n"), Stdout: os.Stdout}); err != nil {
		log.Fatal(err)
	}
	exit, err := p.Wait(ctx)
	fmt.Println(exit.Code, err)
	// Output:
	// hello
	// 0 <nil>
}

// A signal ends a process as a shell would report it.
func ExampleProcess_signal() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Signal(ctx, atoll.SIGKILL); err != nil {
		log.Fatal(err)
	}
	exit, err := p.Wait(ctx)
	fmt.Println(exit.Code, err)
	// Output: 137 <nil>
}

// A time limit ends a command with the code 124.
func ExampleCommand_timeout() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sleep", "1000"}, Timeout: atoll.Duration(50 * time.Millisecond)})
	if err != nil {
		log.Fatal(err)
	}
	exit, err := p.Wait(ctx)
	fmt.Println(exit.Code, exit.TimedOut, err)
	// Output: 124 true <nil>
}

func ExampleProcesses() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	p, err := sb.Exec(ctx, &atoll.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Signal(ctx, atoll.SIGKILL)
	all, err := atoll.Processes(ctx, sb)
	for _, st := range all {
		fmt.Println(strings.Join(st.Args, " "), st.Exit == nil)
	}
	fmt.Println(err)
	// Output:
	// sleep 1000 true
	// <nil>
}

// ExecuteCode runs a program in a language, if the sandbox has its interpreter.
func ExampleExecuteCode() {
	_, sb, done := openSandbox()
	defer done()
	res, err := atoll.ExecuteCode(context.Background(), sb, &atoll.Code{Language: "sh", Code: "echo hello; exit 3"})
	fmt.Printf("%s%d %v\n", res.Stdout, res.Code, err)
	// Output:
	// hello
	// 3 <nil>
}

// Resolve finds a sandbox by its name or its id.
func ExampleResolve() {
	ctx := context.Background()
	p, sb, done := openSandbox()
	defer done()
	found, err := atoll.Resolve(ctx, p, "", "web")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(found.ID() == sb.ID())
	_, err = atoll.Resolve(ctx, p, "", "wbe")
	fmt.Println(errors.Is(err, atoll.ErrNotFound))
	// Output:
	// true
	// true
}

// List finds the sandboxes of earlier runs of a program, too.
func ExampleProvider_list() {
	p, _, done := openSandbox()
	defer done()
	all, err := p.List(context.Background(), atoll.Filter{Labels: map[string]string{"team": "search"}})
	for _, st := range all {
		fmt.Println(st.Spec.Name, st.State)
	}
	fmt.Println(err)
	// Output:
	// web running
	// <nil>
}

// Watch begins with the sandboxes that exist.
func ExampleProvider_watch() {
	p, _, done := openSandbox()
	defer done()
	for ev, err := range p.Watch(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		if ev.Type == atoll.EventSynced {
			break // what follows are changes
		}
		fmt.Println(ev.Status.Spec.Name, ev.Status.State)
	}
	// Output: web running
}

// A stopped sandbox retains its files and starts again.
func ExampleSandbox_stop() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	if err := atoll.WriteFile(ctx, sb, "f", []byte("still here"), 0o644); err != nil {
		log.Fatal(err)
	}
	if err := sb.Stop(ctx, 0); err != nil {
		log.Fatal(err)
	}
	if err := sb.Start(ctx); err != nil {
		log.Fatal(err)
	}
	data, err := atoll.ReadFile(ctx, sb, "f")
	fmt.Printf("%s %v\n", data, err)
	// Output: still here <nil>
}

// Use a context that survives the cancellation of the others to clean up.
func ExampleSandbox_remove() {
	ctx, cancel := context.WithCancel(context.Background())
	p, sb, done := openSandbox()
	defer done()
	cancel() // as by Ctrl-C
	err := sb.Remove(context.WithoutCancel(ctx), atoll.RemoveVolumes())
	fmt.Println(err)
	all, err := p.List(context.Background(), atoll.Filter{})
	fmt.Println(len(all), err)
	// Output:
	// <nil>
	// 0 <nil>
}

// Extend changes when the sandbox expires.
func ExampleExtend() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	if err := atoll.Extend(ctx, sb, atoll.Duration(time.Hour)); err != nil {
		log.Fatal(err)
	}
	st, err := sb.Status(ctx)
	fmt.Println(time.Until(st.Expires).Round(time.Minute), err)
	// Output: 1h0m0s <nil>
}

// A paused sandbox uses no CPU. The provider of this example cannot pause, and says so.
func ExamplePause() {
	ctx := context.Background()
	_, sb, done := openSandbox()
	defer done()
	err := atoll.Pause(ctx, sb)
	if errors.Is(err, atoll.ErrUnsupported) {
		fmt.Println("not here")
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(atoll.Resume(ctx, sb))
	// Output: not here
}

// A data volume outlives its sandbox, unless Remove gets RemoveVolumes.
func ExampleVolumes() {
	ctx := context.Background()
	p, sb, done := openSandbox()
	defer done()
	if err := sb.Remove(ctx); err != nil {
		log.Fatal(err)
	}
	all, err := atoll.Volumes(ctx, p, "")
	for _, v := range all {
		fmt.Println(v.Sandbox == sb.ID(), v.InUse, atoll.RemoveVolume(ctx, p, v.Project, v.Name))
	}
	fmt.Println(err)
	// Output:
	// true false <nil>
	// <nil>
}

// The kind of an error is the same in the library and over HTTP.
func ExampleKindOf() {
	p, _, done := openSandbox()
	defer done()
	_, err := p.Create(context.Background(), &atoll.Spec{Name: "web"})
	fmt.Println(atoll.KindOf(err), errors.Is(err, atoll.ErrAlreadyExists))
	// Output: already exists true
}

// Validate reports what no provider can do; Create calls it.
func ExampleSpec_Validate() {
	spec := &atoll.Spec{Name: "my sandbox"}
	fmt.Println(atoll.KindOf(spec.Validate()))
	// Output: invalid
}

// Info says what the sandboxes of a provider can do.
func ExampleCaps() {
	p, _, done := openSandbox()
	defer done()
	caps := p.Info().Caps
	fmt.Println(caps.Files, caps.TTY, caps.Pause)
	// Output: true true false
}

// As finds abilities that only some providers have, in whatever layer they are.
func ExampleAs() {
	p, _, done := openSandbox()
	defer done()
	_, stores := atoll.As[atoll.VolumeStore](p)
	fmt.Println(stores)
	// Output: true
}

func ExampleParseBytes() {
	n, err := atoll.ParseBytes("1.5g")
	fmt.Println(int64(n), n, err)
	_, err = atoll.ParseBytes("much")
	fmt.Println(err != nil)
	// Output:
	// 1610612736 1536m <nil>
	// true
}

func ExampleParseSignal() {
	sig, err := atoll.ParseSignal("term")
	fmt.Println(sig, sig == atoll.SIGTERM, err)
	// Output: SIGTERM true <nil>
}
