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

// A Computer is a virtual machine that this program is the first process of, or what
// stands for one. It has nothing but what its kernel was started with, until a host has told
// it, on its control port, what it is; then it is a Machine.
type Computer struct {
	world world
	ctx   context.Context
	off   context.CancelFunc // powers it off

	mu    sync.Mutex
	ports map[uint32]func(net.Conn) // what listens
	setUp bool
	m     *Machine

	services sync.WaitGroup // programs of the system's own; they end with ctx
}

// A world is what a Computer is made of: a machine of its own (a board), or a part of one.
type world interface {
	// begin has the Computer be one, as far as no host is needed for that.
	begin(c *Computer) error
	// open lets hosts in.
	open(c *Computer) error
	// setUp makes it what s says, as far as that is no process's business.
	setUp(c *Computer, s *Setup) error
	setTime(nanoseconds int64) error
	// console is where services print.
	console() (*os.File, error)
	// say tells whoever reads the console.
	say(text string)
	// end writes what is to be kept, and ends it, because of what went wrong if anything
	// did. It does not return.
	end(c *Computer, err error)
}

// RunComputer is the whole life of the first process of a virtual machine. It does not
// return.
func RunComputer() { runComputer(board{}) }

func runComputer(w world) {
	c := &Computer{world: w, ports: map[uint32]func(net.Conn){}}
	c.ctx, c.off = context.WithCancel(context.Background())
	err := c.run()
	if err != nil {
		c.say(err.Error())
	}
	c.powerOff(err)
}

func (c *Computer) say(text string) { c.world.say("atoll-guest: " + text) }

// deadly are signals that a program in Go ends with when another one sends them.
var deadly = []os.Signal{
	unix.SIGHUP, unix.SIGQUIT, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS, unix.SIGSTKFLT,
}

func (c *Computer) run() error {
	if err := c.world.begin(c); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, unix.SIGINT, unix.SIGTERM) // ctrl-alt-del, where that is all that a host can press
	signal.Notify(make(chan os.Signal, 1), deadly...)     // which the kernel protects its first process from only if it does not handle them, as Go does
	go func() {
		<-interrupted
		c.off()
	}()
	c.listen(vm.PortPowerOff, func(conn net.Conn) {
		conn.Close()
		c.off()
	})
	c.listen(vm.PortControl, func(conn net.Conn) {
		defer conn.Close()
		c.control(conn)
	})
	if err := c.world.open(c); err != nil {
		return err
	}
	<-c.ctx.Done()
	return nil
}

// listen has serve be called with each connection to a port.
func (c *Computer) listen(port uint32, serve func(net.Conn)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ports[port] = serve
}

// welcome serves who opens connections on a line, until that ends.
func (c *Computer) welcome(s *mux.Session) {
	l := s.Listen()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			port, err := mux.Asked(conn, asking)
			if err != nil {
				conn.Close()
				return
			}
			c.serve(port, conn, true)
		}()
	}
}

// serve joins a connection to what listens on the port.
func (c *Computer) serve(port uint32, conn net.Conn, grant bool) {
	c.mu.Lock()
	serve := c.ports[port]
	c.mu.Unlock()
	if serve == nil || grant && mux.Grant(conn, port) != nil {
		conn.Close()
		return
	}
	serve(conn)
}

// asking is how long who has connected may take to say which port he wants.
const asking = 30 * time.Second

// control reads an Order, does it, and answers.
func (c *Computer) control(conn net.Conn) {
	var o Order
	var r Reply
	err := json.NewDecoder(conn).Decode(&o)
	if err == nil {
		r, err = c.do(o)
	}
	if err != nil {
		r = Reply{Kind: atoll.KindOf(err), Message: err.Error()}
		if e := (*atoll.Error)(nil); errors.As(err, &e) && e.Err != nil {
			r.Message = e.Err.Error()
		}
	}
	_ = json.NewEncoder(conn).Encode(r)
}

func (c *Computer) do(o Order) (Reply, error) {
	if o.Setup != nil {
		return Reply{}, c.become(o.Setup)
	}
	c.mu.Lock()
	m := c.m
	c.mu.Unlock()
	switch {
	case m == nil:
		return Reply{}, atoll.Errorf("control", "", atoll.ErrConflict, "the machine was not set up")
	case o.Main:
		_, err := m.Main(c.ctx)
		return Reply{}, err
	case o.Stop != nil:
		return Reply{}, m.Stop(c.ctx, time.Duration(*o.Stop))
	case o.Time > 0:
		return Reply{}, c.world.setTime(o.Time)
	case o.Count:
		return Reply{Processes: m.count()}, c.catchUp(o.Now)
	}
	return Reply{}, atoll.Errorf("control", "", atoll.ErrInvalid, "nothing was asked for")
}

// catchUp sets a clock that is behind what the host's says, if that is known.
func (c *Computer) catchUp(now int64) error {
	if now-time.Now().UnixNano() < int64(time.Second) {
		return nil
	}
	return c.world.setTime(now)
}

// become makes the machine what s says. It can be done once.
func (c *Computer) become(s *Setup) error {
	c.mu.Lock()
	again := c.setUp
	c.setUp = true
	c.mu.Unlock()
	if again {
		return atoll.Errorf("set up", s.Config.ID, atoll.ErrConflict, "the machine was set up before")
	}
	if err := c.world.setUp(c, s); err != nil {
		return err
	}
	s.Config.Self = "/proc/self/exe" // which a user may execute, too, who could not read /proc/1/exe
	m, err := NewMachine(s.Config)
	if err != nil {
		return err
	}
	m.live(memory())
	handler, err := api.NewHandler(provider{m: m}, api.Options{})
	if err != nil {
		return err
	}
	conns := make(chan net.Conn)
	server := &http.Server{Handler: m.use.Counts(handler)}
	go func() { _ = server.Serve(chanListener{c.ctx, conns}) }()
	c.mu.Lock()
	c.m = m
	c.mu.Unlock()
	c.listen(vm.PortAPI, func(conn net.Conn) {
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
			c.services.Go(func() { c.serveOn(m, p) })
		}
	}
	for _, b := range bridges {
		m.bridges[int(b.Port)] = b
		c.listen(b.Port, func(conn net.Conn) { bridge(conn, b.Network, b.Address) })
	}
	return nil
}

// memory is how much the machine has, 0 if that is not known.
func memory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// live has the guest make do with a part of so much memory. Nothing but the guest itself is
// what the kernel does not end for lack of it.
func (m *Machine) live(memory int64) {
	if memory <= 0 {
		return
	}
	m.table.EndedOutput = min(memory/16, process.DefaultEndedOutput)
	debug.SetMemoryLimit(memory / 4)
}

// A chanListener accepts what comes on a channel.
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

// bridge joins conn to an address in here.
func bridge(conn net.Conn, network, address string) {
	defer conn.Close()
	inner, err := net.Dial(network, address)
	if err != nil {
		return
	}
	defer inner.Close()
	var both sync.WaitGroup
	both.Go(func() { pour(inner, conn) })
	both.Go(func() { pour(conn, inner) })
	both.Wait()
}

// pour copies to its end what comes from src, and says so to dst.
func pour(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if half, ok := dst.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	dst.Close()
	src.Close()
}

// stopTime is how long processes may take to end when the machine is powered off.
const stopTime = 10 * time.Second

// powerOff ends all processes, and the machine.
func (c *Computer) powerOff(why error) {
	c.mu.Lock()
	m := c.m
	c.mu.Unlock()
	if m != nil {
		_ = m.Stop(context.Background(), stopTime)
	}
	c.services.Wait()
	c.world.end(c, why)
}
