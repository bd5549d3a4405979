//go:build unix

package fakevmm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// A VFKitScript tells a fake vfkit to misbehave, or what to run. Write stores it next to the program.
type VFKitScript struct {
	Die      string // the fake exits at "begin", "running", or this requested state
	Say      string // the message of that exit
	Starting int    // milliseconds until the machine is running
	Broken   bool   // the machine never runs
	Boot     int    // milliseconds until the guest listens
	Button   string // error of the power button; "" powers the guest off
	Deaf     bool   // nothing listens on the port for power off
	Fault    string // error of a pause

	Machine *Machine // the guest's machine; nil for a guest in the fake's process
}

const vfkitFile = "vfkit.json"

// Write stores s for fakes in dir that start later.
func (s VFKitScript) Write(dir string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, vfkitFile), text, 0o600)
}

// Ports of a guest without a machine, besides GuestPort.
const (
	EchoPort     = 7
	GreetPort    = 8 // sends a greeting
	EmptyPort    = 9 // nothing listens there
	vfkitOffPort = 50
)

// A vfkitMachine is a machine as described by vfkit's command line.
type vfkitMachine struct {
	script                  VFKitScript
	cpus, memory            int
	rest                    string
	kernel, initrd, cmdline string
	disks                   []map[string]string
	shares                  map[string]string
	ports                   map[uint32]string
	network                 *os.File
	mac                     net.HardwareAddr
	console                 *os.File

	machine vm.Machine // QEMU machine, or nil
	guestUp atomic.Bool

	mu     sync.Mutex
	state  string
	booted time.Time
	guest  sync.RWMutex // held for writing while the machine is paused
	ending sync.Once
}

// VFKit runs the fake with a whole command line and returns its exit code.
func VFKit(args []string) int {
	v := &vfkitMachine{cpus: 1, memory: 512, state: "VirtualMachineStateStarting", shares: map[string]string{}, ports: map[uint32]string{}}
	if text, err := os.ReadFile(filepath.Join(filepath.Dir(args[0]), vfkitFile)); err == nil {
		if err := json.Unmarshal(text, &v.script); err != nil {
			panic(err)
		}
	}
	if len(args) == 2 && args[1] == "--version" {
		fmt.Println("vfkit version: v0.6.1")
		return 0
	}
	v.maybeDie("begin")
	if err := v.parseArgs(args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	l, err := net.Listen("unix", v.rest)
	if err != nil {
		fmt.Fprintln(os.Stderr, "level=fatal msg=", err)
		return 1
	}
	go http.Serve(l, v)
	time.Sleep(time.Duration(v.script.Starting) * time.Millisecond)
	v.maybeDie("running")
	v.mu.Lock()
	v.state, v.booted = "VirtualMachineStateRunning", time.Now()
	if v.script.Broken {
		v.state = "VirtualMachineStateError"
	}
	v.mu.Unlock()
	if v.script.Machine != nil {
		if err := v.bootQEMU(); err != nil {
			fmt.Fprintln(os.Stderr, "Error:", err)
			return 1
		}
	}
	fmt.Fprintf(v.console, "[    0.000000] Command line: %s\n", v.cmdline)
	time.Sleep(30 * time.Millisecond) // vfkit opens the sockets later
	for port, path := range v.ports {
		l, err := net.Listen("unix", (&url.URL{Path: path}).EscapedPath())
		if err != nil {
			fmt.Fprintln(os.Stderr, "level=warning msg=error exposing vsock port", port, err)
			continue
		}
		go v.exposePort(l, port)
	}
	if v.network != nil && v.machine == nil {
		go v.answerFrames()
	}
	select {}
}

func (v *vfkitMachine) maybeDie(at string) {
	if v.script.Die == at {
		fmt.Fprintln(os.Stderr, v.script.Say)
		os.Exit(1)
	}
}

// splitOptions splits the value of --bootloader like vfkit.
func splitOptions(text string) (parts []string, err error) {
	quoted, part := false, ""
	for _, c := range text {
		switch {
		case c == ',' && !quoted:
			parts, part = append(parts, part), ""
			continue
		case c == '"':
			quoted = !quoted
		}
		part += string(c)
	}
	if quoted {
		return nil, errors.New("mismatched \"")
	}
	return append(parts, part), nil
}

// parseArgs parses the flags that the tests use, like vfkit v0.6.1, and rejects all others.
func (v *vfkitMachine) parseArgs(args []string) (err error) {
	for ; len(args) >= 2 && err == nil; args = args[2:] {
		switch value := args[1]; args[0] {
		case "--log-level":
		case "--cpus":
			v.cpus, err = strconv.Atoi(value)
		case "--memory":
			v.memory, err = strconv.Atoi(value)
		case "--restful-uri":
			u, parseErr := url.ParseRequestURI(value)
			if parseErr != nil || u.Scheme != "unix" || u.Host != "" {
				return fmt.Errorf("invalid uri %q: %v", value, parseErr)
			}
			v.rest = u.Path
		case "--bootloader":
			err = v.parseBootloader(value)
		case "--device":
			err = v.parseDevice(value)
		default:
			err = fmt.Errorf("unknown flag: %s", args[0])
		}
	}
	if len(args) > 0 && err == nil {
		err = fmt.Errorf("unknown argument %q", args)
	}
	return err
}

func (v *vfkitMachine) parseBootloader(value string) error {
	parts, err := splitOptions(value)
	if err != nil {
		return err
	}
	if parts[0] != "linux" {
		return fmt.Errorf("unknown bootloader type: %s", parts[0])
	}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		switch key {
		case "kernel":
			v.kernel = value
		case "initrd":
			v.initrd = value
		case "cmdline":
			v.cmdline = strings.Trim(value, `"`)
		default:
			return fmt.Errorf("unknown option for Linux bootloaders: %s", key)
		}
	}
	for _, path := range []string{v.kernel, v.initrd} {
		if _, err := os.ReadFile(path); err != nil && path != "" {
			return err
		}
	}
	return nil
}

func (v *vfkitMachine) parseDevice(value string) (err error) {
	parts := strings.Split(value, ",")
	options := map[string]string{}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		options[key] = value
	}
	known := func(keys ...string) error {
		for key := range options {
			if !strings.Contains(","+strings.Join(keys, ",")+",", ","+key+",") {
				return fmt.Errorf("unknown option for %s devices: %s", parts[0], key)
			}
		}
		return nil
	}
	switch parts[0] {
	case "virtio-rng":
		return known()
	case "virtio-serial":
		v.console, err = os.OpenFile(options["logFilePath"], os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644) // like Apple's framework
		return errors.Join(err, known("logFilePath"))
	case "virtio-blk":
		mode := os.O_RDWR
		if _, ok := options["readonly"]; ok {
			mode = os.O_RDONLY
		}
		f, err := os.OpenFile(options["path"], mode, 0)
		if err != nil {
			return err
		}
		f.Close()
		v.disks = append(v.disks, options)
		return known("path", "deviceId", "readonly")
	case "virtio-fs":
		if _, err := os.ReadDir(options["sharedDir"]); err != nil {
			return err
		}
		v.shares[options["mountTag"]] = options["sharedDir"]
		return known("sharedDir", "mountTag")
	case "virtio-vsock":
		port, err := strconv.ParseUint(options["port"], 10, 32)
		if _, ok := options["connect"]; !ok || err != nil {
			return fmt.Errorf("port %v does not connect: %v", options, err)
		}
		v.ports[uint32(port)] = options["socketURL"]
		return known("port", "socketURL", "connect")
	case "virtio-net":
		fd, err := strconv.Atoi(options["fd"])
		if err != nil {
			return err
		}
		v.network = os.NewFile(uintptr(fd), "network")
		v.mac, err = net.ParseMAC(options["mac"])
		return errors.Join(err, known("fd", "mac"))
	}
	return fmt.Errorf("unknown device type: %s", parts[0])
}

// ServeHTTP implements the REST service.
func (v *vfkitMachine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	fail := func(code int, message string) {
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(map[string]string{"error": message})
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if r.URL.Path != "/vm/state" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if r.Method == http.MethodGet {
		json.NewEncoder(w).Encode(map[string]any{"state": v.state, "canStop": true, "canHardStop": true})
		return
	}
	var s struct{ State string }
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		fail(http.StatusBadRequest, err.Error())
		return
	}
	v.maybeDie(s.State)
	var err error
	switch {
	case s.State == "Stop" && v.machine != nil: // QEMU machines have no power button
	case s.State == "Stop" && v.script.Button != "":
		fail(http.StatusInternalServerError, v.script.Button)
		return
	case s.State == "Stop":
		go v.powerOff()
	case s.State == "Pause" && v.script.Fault != "":
		fail(http.StatusInternalServerError, v.script.Fault)
		return
	case s.State == "Pause" && v.state == "VirtualMachineStateRunning":
		if v.machine != nil {
			err = v.machine.Pause(r.Context())
		}
		v.guest.Lock()
		v.state = "VirtualMachineStatePaused"
	case s.State == "Resume" && v.state == "VirtualMachineStatePaused":
		if v.machine != nil {
			err = v.machine.Resume(r.Context())
		}
		v.guest.Unlock()
		v.state = "VirtualMachineStateRunning"
	default:
		fail(http.StatusInternalServerError, "Invalid state transition. Transition from state "+v.state+" to state "+s.State+" is invalid.")
		return
	}
	if err != nil {
		fail(http.StatusInternalServerError, err.Error())
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// powerOff ends the fake like a guest that powers off.
func (v *vfkitMachine) powerOff() {
	v.ending.Do(func() {
		time.Sleep(30 * time.Millisecond)
		fmt.Fprintln(v.console, "[    1.000000] reboot: Power down")
		os.Exit(0)
	})
}

// exposePort accepts connections on a socket before it knows whether the guest listens, like vfkit.
func (v *vfkitMachine) exposePort(l net.Listener, port uint32) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			if v.machine != nil {
				v.forwardConn(conn, port)
				return
			}
			v.guest.RLock() // blocks while the machine is paused
			booting := time.Since(v.booted) < time.Duration(v.script.Boot)*time.Millisecond
			v.guest.RUnlock()
			if booting {
				return
			}
			switch {
			case port == GuestPort:
				dir := filepath.Join(filepath.Dir(v.rest), "inside")
				_ = os.Mkdir(dir, 0o700) // it may exist
				if err := guest.Serve(conn, dirfs.Options{Workdir: dir, UID: -1, GID: -1}); err != nil {
					fmt.Fprintln(os.Stderr, "guest:", err)
				}
			case port == EchoPort:
				for b := make([]byte, 1024); ; {
					n, err := conn.Read(b)
					if err != nil {
						return
					}
					v.guest.RLock()
					conn.Write(b[:n])
					v.guest.RUnlock()
				}
			case port == GreetPort:
				fmt.Fprint(conn, "hello")
				io.Copy(io.Discard, conn)
			case port == vfkitOffPort && !v.script.Deaf:
				conn.Close()
				v.powerOff()
			}
		}()
	}
}

// bootQEMU boots a QEMU machine as described by the command line.
func (v *vfkitMachine) bootQEMU() (err error) {
	dir := filepath.Dir(v.rest)
	h := &vm.Hardware{
		ID: filepath.Base(filepath.Dir(filepath.Dir(dir))), Dir: dir, Console: filepath.Join(dir, "qemu"), CPUs: v.cpus, Memory: atoll.Bytes(v.memory) << 20,
		Kernel: v.kernel, Initrd: v.initrd, Network: v.network, MAC: v.mac,
	}
	for word := range strings.FieldsSeq(v.cmdline) {
		if word != "console=hvc0" { // QEMU does not have this console
			h.Cmdline = append(h.Cmdline, word)
		}
	}
	for _, d := range v.disks {
		_, readOnly := d["readonly"]
		h.Disks = append(h.Disks, vm.Disk{ID: d["deviceId"], Path: d["path"], ReadOnly: readOnly})
	}
	for tag, dir := range v.shares {
		h.Shares = append(h.Shares, vm.Share{Tag: tag, Dir: dir})
	}
	v.machine, err = v.script.Machine.bootMachine(h, v.console, func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	})
	return err
}

// Limits of a connection to a port of a guest in a machine. While the guest boots, vfkit closes
// connections at once.
const (
	bootingTime = 300 * time.Millisecond
	askingTime  = 30 * time.Second // before testenv.Scale
)

// forwardConn connects conn to a port of the guest in the machine.
func (v *vfkitMachine) forwardConn(conn net.Conn, port uint32) {
	wait := bootingTime
	if v.guestUp.Load() {
		wait = testenv.Scale(askingTime)
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	inner, err := v.machine.Dial(ctx, port)
	if err != nil {
		return
	}
	v.guestUp.Store(true)
	joinConns(conn, bufio.NewReader(conn), inner)
}

// answerFrames sends each Ethernet frame back to its source.
func (v *vfkitMachine) answerFrames() {
	b := make([]byte, 2048)
	for {
		n, err := v.network.Read(b)
		if err != nil {
			return
		}
		if n < 14 {
			continue
		}
		answer := append(append(append([]byte(nil), b[6:12]...), v.mac...), b[12:n]...)
		v.network.Write(answer)
	}
}
