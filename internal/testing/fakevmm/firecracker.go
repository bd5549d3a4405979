//go:build linux

package fakevmm

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Script tells a fake to misbehave, or what to run. Write stores it next to the program, where the
// program and the jailer find it.
type Script struct {
	Die     string            // the fake exits at this request: a path, an action, or "begin"
	Slow    map[string]int    // delay of requests in milliseconds, by path
	Fault   map[string]string // error messages of requests, by path
	Garbage string            // the path whose answers are not JSON
	Boot    int               // milliseconds until the guest listens
	Silent  bool              // the vsock accepts connections, and sends nothing
	Answer  string            // the answer of the vsock instead of OK
	Deaf    bool              // the guest ignores Ctrl+Alt+Del
	Panic   int               // milliseconds until the hypervisor dies
	Crash   int               // milliseconds until the guest's kernel panics and the machine powers off
	Mute    bool              // the machine has no keyboard
	Version string

	Machine *Machine // the guest's machine; nil for a guest in the fake's process
}

const scriptFile = "script.json"

// Write stores s for fakes in dir that start later.
func (s Script) Write(dir string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, scriptFile), text, 0o644)
}

// A computer is the machine that the fake hypervisor runs.
type computer interface {
	// powerOn boots the computer. When the computer powers off, the fake exits.
	powerOn(f *fakeFirecracker) error
	// portServer returns the function that serves a port, or nil if nothing listens there.
	portServer(port uint32) func(conn net.Conn, in *bufio.Reader)
	// setPaused pauses or resumes the computer.
	setPaused(bool) error
	// pressCtrlAltDel sends Ctrl+Alt+Del to the guest.
	pressCtrlAltDel()
	// readMemory returns the content of the memory, for a snapshot.
	readMemory() (string, error)
	// setMemory sets the content of the memory before powerOn.
	setMemory(string)
}

// A fakeFirecracker is one process of the fake.
type fakeFirecracker struct {
	script Script
	id     string

	mu     sync.Mutex // held during a request
	state  string
	boot   *bootSource
	config machineConfig
	drives []drive
	vsock  *vsock
	listen net.Listener
	ready  bool // a request has configured boot-specific resources

	computer computer
}

type (
	bootSource struct {
		Kernel string `json:"kernel_image_path"`
		Initrd string `json:"initrd_path"`
		Args   string `json:"boot_args"`
	}
	machineConfig struct {
		CPUs   int `json:"vcpu_count"`
		Memory int `json:"mem_size_mib"`
	}
	drive struct {
		ID       string `json:"drive_id"`
		Path     string `json:"path_on_host"`
		Root     bool   `json:"is_root_device"`
		ReadOnly bool   `json:"is_read_only"`
	}
	vsock struct {
		CID  uint32 `json:"guest_cid"`
		Path string `json:"uds_path"`
	}
	savedState struct {
		Version string
		Config  machineConfig
		Drives  []drive
		Vsock   *vsock
	}
)

// Firecracker runs the fake with a whole command line and returns its exit code.
func Firecracker(args []string) int {
	f := &fakeFirecracker{state: "Not started", config: machineConfig{1, 128}}
	if text, err := os.ReadFile(filepath.Join(filepath.Dir(args[0]), scriptFile)); err == nil {
		if err := json.Unmarshal(text, &f.script); err != nil {
			panic(err)
		}
	}
	if f.script.Version == "" {
		f.script.Version = "1.13.1"
	}
	f.computer = &inProcessGuest{script: &f.script}
	if f.script.Machine != nil {
		f.computer = &qemuComputer{machine: f.script.Machine}
	}
	flags := flag.NewFlagSet("firecracker", flag.ContinueOnError)
	socket := flags.String("api-sock", "/run/firecracker.socket", "")
	flags.StringVar(&f.id, "id", "anonymous-instance", "")
	level := flags.String("level", "Info", "")
	version := flags.Bool("version", false, "")
	flags.Uint64("start-time-us", 0, "")
	flags.Uint64("start-time-cpu-us", 0, "")
	if err := flags.Parse(args[1:]); err != nil || flags.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "Arguments parsing error:", err, flags.Args())
		return 153
	}
	if *version {
		fmt.Printf("Firecracker v%s\n\nSupported snapshot data format versions: v8.0.0\n", f.script.Version)
		return 0
	}
	if !regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`).MatchString(f.id) || len(os.Environ()) > 0 {
		fmt.Fprintln(os.Stderr, "invalid id or environment", f.id, os.Environ())
		return 1
	}
	if *level == "Info" {
		fmt.Println("Running Firecracker v" + f.script.Version)
	}
	f.maybeDie("begin")
	l, err := net.Listen("unix", *socket)
	if err != nil {
		fmt.Fprintf(os.Stderr, "Error: RunWithApi(FailedToBindSocket: %q)\n", *socket)
		return 1
	}
	panic((&http.Server{Handler: f}).Serve(l))
}

func (f *fakeFirecracker) maybeDie(at string) {
	if f.script.Die == at {
		fmt.Fprintln(os.Stderr, "told to die at", at)
		os.Exit(148) // like a seccomp violation
	}
}

func (f *fakeFirecracker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	path := r.URL.Path
	time.Sleep(time.Duration(f.script.Slow[path]) * time.Millisecond)
	f.maybeDie(path)
	text, _ := io.ReadAll(r.Body)
	message := f.script.Fault[path]
	var answer any
	if message == "" {
		answer, message = f.handleRequest(r.Method, path, text)
	}
	w.Header().Set("Server", "Firecracker API")
	w.Header().Set("Content-Type", "application/json")
	switch {
	case f.script.Garbage == path:
		fmt.Fprint(w, "<html>")
	case message != "":
		w.WriteHeader(http.StatusBadRequest)
		json.NewEncoder(w).Encode(map[string]string{"fault_message": message})
	case answer != nil:
		json.NewEncoder(w).Encode(answer)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

const (
	preBoot  = "The requested operation is not supported before starting the microVM."
	postBoot = "The requested operation is not supported after starting the microVM."
)

// handleRequest handles a request and returns an answer or a fault message.
func (f *fakeFirecracker) handleRequest(method, path string, text []byte) (answer any, message string) {
	if method == http.MethodGet && path == "/" {
		return map[string]string{"id": f.id, "state": f.state, "vmm_version": f.script.Version, "app_name": "Firecracker"}, ""
	}
	decode := func(v any) bool {
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.DisallowUnknownFields()
		if err := d.Decode(v); err != nil {
			message = "An error occurred when deserializing the json body of a request: " + err.Error() + "."
		}
		return message == ""
	}
	on := f.state != "Not started"
	switch {
	case method == http.MethodPut && path == "/actions":
		var a struct {
			Type string `json:"action_type"`
		}
		if decode(&a) {
			message = f.runAction(a.Type, on)
		}
	case method == http.MethodPatch && path == "/vm":
		var s struct {
			State string `json:"state"`
		}
		if decode(&s) {
			message = f.setState(s.State, on)
		}
	case method == http.MethodPut && path == "/snapshot/create":
		var s struct {
			Type   string `json:"snapshot_type"`
			State  string `json:"snapshot_path"`
			Memory string `json:"mem_file_path"`
		}
		switch {
		case !decode(&s):
		case !on:
			message = preBoot
		default:
			message = f.saveSnapshot(s.State, s.Memory)
		}
	case method == http.MethodPut && path == "/snapshot/load":
		var s struct {
			State  string `json:"snapshot_path"`
			Memory struct {
				Type string `json:"backend_type"`
				Path string `json:"backend_path"`
			} `json:"mem_backend"`
			Resume bool `json:"resume_vm"`
		}
		switch {
		case !decode(&s):
		case on:
			message = postBoot
		case f.ready:
			message = "Load snapshot error: Loading a microVM snapshot not allowed after configuring boot-specific resources."
		default:
			if message = f.loadSnapshot(s.State, s.Memory.Path, s.Resume); message != "" {
				go func() { time.Sleep(20 * time.Millisecond); os.Exit(1) }() // like the real one
			}
		}
	case method == http.MethodPut && on:
		message = postBoot
	case method == http.MethodPut:
		f.ready = true
		message = f.setConfig(path, decode)
		if message == "" {
			decode(&struct{}{})
			message = ""
		}
	default:
		message = fmt.Sprintf("Invalid request method and/or path: %s %s.", method, path)
	}
	return nil, message
}

func (f *fakeFirecracker) setConfig(path string, decode func(any) bool) string {
	id, isDrive := strings.CutPrefix(path, "/drives/")
	switch {
	case path == "/machine-config":
		var c machineConfig
		switch {
		case !decode(&c):
			return "An error occurred when deserializing the json body of a request."
		case c.CPUs < 1 || c.CPUs > 32:
			return "Machine config error: The vCPU number is invalid! The vCPU number can only be 1 or an even number when SMT is enabled."
		case c.Memory < 1:
			return "Machine config error: The memory size (MiB) is invalid."
		}
		f.config = c
	case path == "/boot-source":
		var b bootSource
		if !decode(&b) {
			return "An error occurred when deserializing the json body of a request."
		}
		if _, err := os.ReadFile(b.Kernel); err != nil {
			return "Boot source error: The kernel file cannot be opened: " + osError(err)
		}
		if b.Initrd != "" {
			if _, err := os.ReadFile(b.Initrd); err != nil {
				return "Boot source error: The initrd file cannot be opened due to invalid path or invalid permissions. " + osError(err)
			}
		}
		f.boot = &b
	case path == "/entropy":
	case path == "/vsock":
		var v vsock
		if !decode(&v) {
			return "An error occurred when deserializing the json body of a request."
		}
		if v.CID < 3 {
			return "Vsock config error: the CID is invalid."
		}
		return f.listenVsock(&v)
	case isDrive:
		var d drive
		if !decode(&d) {
			return "An error occurred when deserializing the json body of a request."
		}
		if d.ID != id {
			return "The id from the path does not match the id from the body!"
		}
		if !regexp.MustCompile(`^[A-Za-z0-9_]+$`).MatchString(id) {
			return "API Resource IDs can only contain alphanumeric characters and underscores."
		}
		for _, other := range f.drives {
			if d.Root && other.Root {
				return "Drive config error: A root block device already exists!"
			}
		}
		if message := openDrive(d); message != "" {
			return message
		}
		f.drives = append(f.drives, d)
	default:
		return "Invalid request method and/or path: PUT " + path + "."
	}
	return ""
}

func osError(err error) string {
	var no syscall.Errno
	if errors.As(err, &no) {
		return fmt.Sprintf("%s (os error %d)", no, int(no))
	}
	return err.Error()
}

func openDrive(d drive) string {
	mode := os.O_RDWR
	if d.ReadOnly {
		mode = os.O_RDONLY
	}
	file, err := os.OpenFile(d.Path, mode, 0)
	if err != nil {
		return "Drive config error: Unable to create the virtio block device: Virtio backend error: Error manipulating the backing file: " + osError(err) + " " + d.Path
	}
	file.Close()
	return ""
}

func (f *fakeFirecracker) listenVsock(v *vsock) string {
	l, err := net.Listen("unix", v.Path)
	if err != nil {
		return "Vsock config error: Cannot create backend for vsock device: UnixBind(" + osError(err) + ")"
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // Firecracker leaves its sockets
	f.vsock, f.listen = v, l
	return ""
}

func (f *fakeFirecracker) runAction(name string, on bool) string {
	f.maybeDie(name)
	switch {
	case name == "InstanceStart" && on:
		return postBoot
	case name == "InstanceStart" && f.boot == nil:
		return "Start microvm error: Cannot start microvm without kernel configuration."
	case name == "InstanceStart":
		args := f.boot.Args
		for _, d := range f.drives {
			if d.Root {
				args += " root=/dev/vda" + map[bool]string{true: " ro", false: " rw"}[d.ReadOnly]
			}
		}
		f.boot.Args = args
		if err := f.startComputer(); err != nil {
			return "Start microvm error: " + err.Error()
		}
	case name == "SendCtrlAltDel" && !on:
		return preBoot
	case name == "SendCtrlAltDel":
		f.computer.pressCtrlAltDel()
	default:
		return "An error occurred when deserializing the json body of a request: unknown variant `" + name + "`."
	}
	return ""
}

// startComputer boots the computer and serves the vsock.
func (f *fakeFirecracker) startComputer() error {
	f.state = "Running"
	if err := f.computer.powerOn(f); err != nil {
		return err
	}
	if f.listen != nil {
		go func() {
			for {
				conn, err := f.listen.Accept()
				if err != nil {
					return
				}
				go f.serveConn(conn)
			}
		}()
	}
	if f.script.Panic > 0 {
		time.AfterFunc(time.Duration(f.script.Panic)*time.Millisecond, func() { f.script.Die = "panic"; f.maybeDie("panic") })
	}
	return nil
}

// serveConn serves a connection to the vsock's socket.
func (f *fakeFirecracker) serveConn(conn net.Conn) {
	defer conn.Close()
	if f.script.Silent {
		io.Copy(io.Discard, conn)
		return
	}
	in := bufio.NewReader(conn)
	text, err := in.ReadString('\n')
	number, ok := strings.CutPrefix(strings.TrimSuffix(text, "\n"), "CONNECT ")
	port, portErr := strconv.ParseUint(number, 10, 32)
	if err != nil || !ok || portErr != nil {
		return
	}
	serve := f.computer.portServer(uint32(port))
	if serve == nil {
		return
	}
	if f.script.Answer != "" {
		fmt.Fprint(conn, f.script.Answer)
		io.Copy(io.Discard, conn)
		return
	}
	fmt.Fprintf(conn, "OK %d\n", 1<<30+port) // like the real one: the port of the host
	serve(conn, in)
}

func (f *fakeFirecracker) setState(want string, on bool) string {
	var err error
	switch {
	case !on:
		return preBoot
	case want == "Paused" && f.state == "Running":
		if err = f.computer.setPaused(true); err == nil {
			f.state = "Paused"
		}
	case want == "Resumed" && f.state == "Paused":
		if err = f.computer.setPaused(false); err == nil {
			f.state = "Running"
		}
	case want != "Paused" && want != "Resumed":
		return "An error occurred when deserializing the json body of a request: unknown variant `" + want + "`."
	}
	if err != nil {
		return "Set state error: " + err.Error()
	}
	return ""
}

func (f *fakeFirecracker) saveSnapshot(state, memory string) string {
	if f.state != "Paused" {
		return "Create snapshot error: Cannot save the microVM state: the microVM is not paused"
	}
	contents, err := f.computer.readMemory()
	if err != nil {
		return "Create snapshot error: " + err.Error()
	}
	text, err := json.Marshal(savedState{f.script.Version, f.config, f.drives, f.vsock})
	if err == nil {
		err = os.WriteFile(state, text, 0o600)
	}
	if err == nil {
		err = os.WriteFile(memory, []byte(contents), 0o600)
	}
	if err != nil {
		return "Create snapshot error: Cannot write the memory file: " + err.Error()
	}
	return ""
}

func (f *fakeFirecracker) loadSnapshot(state, memory string, resume bool) string {
	const failed = "Load snapshot error: Failed to restore from snapshot: "
	text, err := os.ReadFile(state)
	if err != nil {
		return failed + "Failed to get snapshot state from file: " + osError(err)
	}
	var s savedState
	if err := json.Unmarshal(text, &s); err != nil {
		return failed + "Failed to load snapshot state from file: " + err.Error()
	}
	if s.Version != f.script.Version {
		return failed + "Failed to load snapshot state from file: Invalid data version: " + s.Version
	}
	contents, err := os.ReadFile(memory)
	if err != nil {
		return failed + "Failed to load guest memory: " + osError(err)
	}
	for _, d := range s.Drives {
		if message := openDrive(d); message != "" {
			return failed + message
		}
	}
	if s.Vsock != nil {
		if message := f.listenVsock(s.Vsock); message != "" {
			return failed + message
		}
	}
	f.config, f.drives = s.Config, s.Drives
	f.computer.setMemory(string(contents))
	if err := f.startComputer(); err != nil {
		return failed + err.Error()
	}
	if !resume {
		f.setState("Paused", true)
	}
	return ""
}
