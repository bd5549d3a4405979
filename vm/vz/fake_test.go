//go:build unix

package vz_test

import (
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
	"time"

	"github.com/seed46cd37a8/atoll/guest"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
)

// A script is what a fake does otherwise than it should, in a file beside the program.
type script struct {
	Die      string // when it ends: "begin", "running", or a state that is asked for
	Say      string // and what it says then
	Starting int    // how many milliseconds the machine takes to be on
	Broken   bool   // it never is
	Boot     int    // how many milliseconds the guest takes to listen
	Button   string // what the power button answers; "" is that the guest ends
	Deaf     bool   // nothing listens on the port to power off
	Fault    string // what pausing answers
}

const (
	scriptFile = "script.json"
	guestPort  = 52
	echoPort   = 7
	greetPort  = 8 // says something first
	emptyPort  = 9 // nothing listens
	offPort    = 50
)

// A machine as vfkit's command line has it.
type virtual struct {
	script                  script
	cpus, memory            int
	rest                    string
	kernel, initrd, cmdline string
	disks                   []map[string]string
	shares                  map[string]string
	ports                   map[uint32]string
	network                 *os.File
	mac                     net.HardwareAddr
	console                 *os.File

	mu     sync.Mutex
	state  string
	booted time.Time
	guest  sync.RWMutex // held while it is paused
	ending sync.Once
}

// fakeVfkit is the program: its command line and service are like the real one's, and
// what is behind its sockets is the real guest.
func fakeVfkit(args []string) int {
	v := &virtual{cpus: 1, memory: 512, state: "VirtualMachineStateStarting", shares: map[string]string{}, ports: map[uint32]string{}}
	if text, err := os.ReadFile(filepath.Join(filepath.Dir(args[0]), scriptFile)); err == nil {
		if err := json.Unmarshal(text, &v.script); err != nil {
			panic(err)
		}
	}
	if len(args) == 2 && args[1] == "--version" {
		fmt.Println("vfkit version: v0.6.1")
		return 0
	}
	v.maybeDie("begin")
	if err := v.parse(args[1:]); err != nil {
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
	fmt.Fprintf(v.console, "[    0.000000] Command line: %s\n", v.cmdline)
	time.Sleep(30 * time.Millisecond) // sockets come after that
	for port, path := range v.ports {
		l, err := net.Listen("unix", (&url.URL{Path: path}).EscapedPath())
		if err != nil {
			fmt.Fprintln(os.Stderr, "level=warning msg=error exposing vsock port", port, err)
			continue
		}
		go v.expose(l, port)
	}
	if v.network != nil {
		go v.answerFrames()
	}
	select {}
}

func (v *virtual) maybeDie(at string) {
	if v.script.Die == at {
		fmt.Fprintln(os.Stderr, v.script.Say)
		os.Exit(1)
	}
}

// split is how vfkit reads what follows --bootloader.
func split(text string) (parts []string, err error) {
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
		return nil, errors.New("Mismatched \"")
	}
	return append(parts, part), nil
}

// parse reads what v0.6.1 reads, and nothing else.
func (v *virtual) parse(args []string) (err error) {
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
			err = v.boot(value)
		case "--device":
			err = v.device(value)
		default:
			err = fmt.Errorf("unknown flag: %s", args[0])
		}
	}
	if len(args) > 0 && err == nil {
		err = fmt.Errorf("unknown argument %q", args)
	}
	return err
}

func (v *virtual) boot(value string) error {
	parts, err := split(value)
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

func (v *virtual) device(value string) (err error) {
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
		v.console, err = os.OpenFile(options["logFilePath"], os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644) // as the framework does
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

// ServeHTTP is the REST service.
func (v *virtual) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
	switch {
	case s.State == "Stop" && v.script.Button != "":
		fail(http.StatusInternalServerError, v.script.Button)
		return
	case s.State == "Stop":
		go v.off()
	case s.State == "Pause" && v.script.Fault != "":
		fail(http.StatusInternalServerError, v.script.Fault)
		return
	case s.State == "Pause" && v.state == "VirtualMachineStateRunning":
		v.guest.Lock()
		v.state = "VirtualMachineStatePaused"
	case s.State == "Resume" && v.state == "VirtualMachineStatePaused":
		v.guest.Unlock()
		v.state = "VirtualMachineStateRunning"
	default:
		fail(http.StatusInternalServerError, "Invalid state transition. Transition from state "+v.state+" to state "+s.State+" is invalid.")
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// off is a guest that powers off.
func (v *virtual) off() {
	v.ending.Do(func() {
		time.Sleep(30 * time.Millisecond)
		fmt.Fprintln(v.console, "[    1.000000] reboot: Power down")
		os.Exit(0)
	})
}

// expose takes connections, and only then asks the guest for its port.
func (v *virtual) expose(l net.Listener, port uint32) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			v.guest.RLock() // a paused machine says nothing
			booting := time.Since(v.booted) < time.Duration(v.script.Boot)*time.Millisecond
			v.guest.RUnlock()
			if booting {
				return
			}
			switch {
			case port == guestPort:
				dir := filepath.Join(filepath.Dir(v.rest), "inside")
				_ = os.Mkdir(dir, 0o700) // it may be there
				if err := guest.Serve(conn, dirfs.Options{Workdir: dir, UID: -1, GID: -1}); err != nil {
					fmt.Fprintln(os.Stderr, "guest:", err)
				}
			case port == echoPort:
				for b := make([]byte, 1024); ; {
					n, err := conn.Read(b)
					if err != nil {
						return
					}
					v.guest.RLock()
					conn.Write(b[:n])
					v.guest.RUnlock()
				}
			case port == greetPort:
				fmt.Fprint(conn, "hello")
				io.Copy(io.Discard, conn)
			case port == offPort && !v.script.Deaf:
				conn.Close()
				v.off()
			}
		}()
	}
}

// answerFrames sends each frame back to where it is from.
func (v *virtual) answerFrames() {
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
