package guest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/mux"
	"github.com/seed46cd37a8/atoll/internal/process"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/server/api"
)

// A Computer is a virtual machine, or its replacement, with this program as its first process. It
// has only what its kernel started with, until a host sends a Setup on its control port; then it is
// a Machine.
type Computer struct {
	platform    platform
	ctx         context.Context
	powerOffNow context.CancelFunc // powers the Computer off

	mu      sync.Mutex
	ports   map[uint32]func(net.Conn) // handlers of connections, by port
	isSetUp bool
	machine *Machine

	services sync.WaitGroup // the system's own programs; they end with ctx
}

// A platform is the system below a Computer: a virtual machine (vmPlatform), or a distribution of
// WSL.
type platform interface {
	// prepareSystem does what is possible before a host connects.
	prepareSystem(c *Computer) error
	// openPorts lets hosts connect.
	openPorts(c *Computer) error
	// setUp configures the Computer according to s, except for processes.
	setUp(c *Computer, s *Setup) error
	setTime(nanoseconds int64) error
	// openConsole returns the file for the output of services.
	openConsole() (*os.File, error)
	// logMessage writes to the console.
	logMessage(text string)
	// shutDown writes the disks and ends the Computer, because of err if that is not nil. It does
	// not return.
	shutDown(c *Computer, err error)
}

// RunComputer runs the first process of a virtual machine. It does not return.
func RunComputer() { runComputer(vmPlatform{}) }

func runComputer(w platform) {
	c := &Computer{platform: w, ports: map[uint32]func(net.Conn){}}
	c.ctx, c.powerOffNow = context.WithCancel(context.Background())
	err := c.runUntilOff()
	if err != nil {
		c.logMessage(err.Error())
	}
	c.powerOff(err)
}

func (c *Computer) logMessage(text string) { c.platform.logMessage("atoll-guest: " + text) }

// fatalSignals lists the signals that end a Go program when another one sends them.
var fatalSignals = []os.Signal{
	unix.SIGHUP, unix.SIGQUIT, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS, unix.SIGSTKFLT,
}

func (c *Computer) runUntilOff() error {
	if err := c.platform.prepareSystem(c); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, unix.SIGINT, unix.SIGTERM)   // ctrl-alt-del, for hosts that have no other way
	signal.Notify(make(chan os.Signal, 1), fatalSignals...) // the kernel protects its first process only from signals without a handler, and Go has handlers
	go func() {
		<-interrupted
		c.powerOffNow()
	}()
	c.handlePort(vm.PortPowerOff, func(conn net.Conn) {
		conn.Close()
		c.powerOffNow()
	})
	c.handlePort(vm.PortControl, func(conn net.Conn) {
		defer conn.Close()
		c.handleOrder(conn)
	})
	if err := c.platform.openPorts(c); err != nil {
		return err
	}
	<-c.ctx.Done()
	return nil
}

// handlePort makes serve handle each connection to a port.
func (c *Computer) handlePort(port uint32, serve func(net.Conn)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ports[port] = serve
}

// serveSession serves the connections of a session until it ends.
func (c *Computer) serveSession(s *mux.Session) {
	l := s.Listen()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			port, err := mux.Asked(conn, portTimeout)
			if err != nil {
				conn.Close()
				return
			}
			c.serveConn(port, conn, true)
		}()
	}
}

// serveConn passes a connection to the handler of the port.
func (c *Computer) serveConn(port uint32, conn net.Conn, grant bool) {
	c.mu.Lock()
	serve := c.ports[port]
	c.mu.Unlock()
	if serve == nil || grant && mux.Grant(conn, port) != nil {
		conn.Close()
		return
	}
	serve(conn)
}

// portTimeout bounds how long a new connection may take to name its port.
const portTimeout = 30 * time.Second

// handleOrder reads an Order, executes it, and answers.
func (c *Computer) handleOrder(conn net.Conn) {
	var o Order
	var r Reply
	err := json.NewDecoder(conn).Decode(&o)
	if err == nil {
		r, err = c.executeOrder(o)
	}
	if err != nil {
		r = Reply{Kind: atoll.KindOf(err), Message: err.Error()}
		if e := (*atoll.Error)(nil); errors.As(err, &e) && e.Err != nil {
			r.Message = e.Err.Error()
		}
	}
	_ = json.NewEncoder(conn).Encode(r)
}

func (c *Computer) executeOrder(o Order) (Reply, error) {
	if o.Setup != nil {
		return Reply{}, c.becomeMachine(o.Setup)
	}
	c.mu.Lock()
	m := c.machine
	c.mu.Unlock()
	switch {
	case m == nil:
		return Reply{}, atoll.Errorf("control", "", atoll.ErrConflict, "the machine is not set up")
	case o.Main:
		_, err := m.Main(c.ctx)
		return Reply{}, err
	case o.Stop != nil:
		return Reply{}, m.Stop(c.ctx, time.Duration(*o.Stop))
	case o.Time > 0:
		return Reply{}, c.platform.setTime(o.Time)
	case o.Count:
		return Reply{Processes: m.countProcesses()}, c.catchUp(o.Now)
	}
	return Reply{}, atoll.Errorf("control", "", atoll.ErrInvalid, "the order is empty")
}

// catchUp sets a clock that is behind the host's, if now is known.
func (c *Computer) catchUp(now int64) error {
	if now-time.Now().UnixNano() < int64(time.Second) {
		return nil
	}
	return c.platform.setTime(now)
}

// becomeMachine applies the Setup. It works once.
func (c *Computer) becomeMachine(s *Setup) error {
	c.mu.Lock()
	again := c.isSetUp
	c.isSetUp = true
	c.mu.Unlock()
	if again {
		return atoll.Errorf("set up", s.Config.ID, atoll.ErrConflict, "the machine was set up before")
	}
	if err := c.platform.setUp(c, s); err != nil {
		return err
	}
	s.Config.Self = "/proc/self/exe" // users who cannot read /proc/1/exe can execute this
	m, err := NewMachine(s.Config)
	if err != nil {
		return err
	}
	m.limitGuestMemory(totalMemory())
	handler, err := api.NewHandler(provider{m: m}, api.Options{})
	if err != nil {
		return err
	}
	conns := make(chan net.Conn)
	server := &http.Server{Handler: m.use.Counts(handler)}
	go func() { _ = server.Serve(chanListener{c.ctx, conns}) }()
	c.mu.Lock()
	c.machine = m
	c.mu.Unlock()
	c.handlePort(vm.PortAPI, func(conn net.Conn) {
		select {
		case conns <- conn:
		case <-c.ctx.Done():
			conn.Close()
		}
	})
	bridges := slices.Clone(s.Bridges)
	if s.Init != nil {
		for _, b := range s.Init.Bridges {
			bridges = append(bridges, Bridge{Port: b.Port, Network: "unix", Address: b.Unix})
		}
		for _, p := range s.Init.Start {
			c.services.Go(func() { c.superviseService(m, p) })
		}
	}
	for _, b := range bridges {
		m.bridges[int(b.Port)] = b
		c.handlePort(b.Port, func(conn net.Conn) { bridgeConn(conn, b.Network, b.Address) })
	}
	return nil
}

// totalMemory returns the memory of the machine in bytes, 0 if it is unknown.
func totalMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// limitGuestMemory limits the guest to a part of that much memory: when memory runs out, the kernel
// spares only the guest.
func (m *Machine) limitGuestMemory(memory int64) {
	if memory <= 0 {
		return
	}
	m.processes.EndedOutput = min(memory/16, process.DefaultEndedOutput)
	debug.SetMemoryLimit(memory / 4)
}

// A chanListener accepts connections from a channel.
type chanListener struct {
	ctx   context.Context
	conns chan net.Conn
}

func (l chanListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l chanListener) Close() error   { return nil }
func (l chanListener) Addr() net.Addr { return &net.UnixAddr{Name: "guest", Net: "unix"} }

// bridgeConn connects conn to an address in the machine.
func bridgeConn(conn net.Conn, network, address string) {
	defer conn.Close()
	inner, err := net.Dial(network, address)
	if err != nil {
		return
	}
	defer inner.Close()
	var both sync.WaitGroup
	both.Go(func() { copyStream(inner, conn) })
	both.Go(func() { copyStream(conn, inner) })
	both.Wait()
}

// copyStream copies src to dst until src ends, and then ends dst.
func copyStream(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if half, ok := dst.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	dst.Close()
	src.Close()
}

// stopTimeout bounds how long processes may take to end when the machine is powered off.
const stopTimeout = 10 * time.Second

// powerOff ends all processes, and the machine.
func (c *Computer) powerOff(why error) {
	c.mu.Lock()
	m := c.machine
	c.mu.Unlock()
	if m != nil {
		_ = m.Stop(context.Background(), stopTimeout)
	}
	c.services.Wait()
	c.platform.shutDown(c, why)
}
