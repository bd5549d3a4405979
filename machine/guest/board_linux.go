package guest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll/internal/mux"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// A board is the world of a Computer that has a kernel to itself.
type board struct{}

func (board) begin(*Computer) error {
	for _, m := range kernelMounts {
		if err := m.make(""); err != nil {
			return err
		}
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) // else the kernel would reset at once when a host presses ctrl-alt-del
	return loadModules()
}

func (board) setUp(_ *Computer, s *Setup) error { return s.apply() }

func (board) setTime(nanoseconds int64) error { return setTime(nanoseconds) }

func (board) console() (*os.File, error) {
	return os.OpenFile("/dev/console", os.O_WRONLY|unix.O_NOCTTY, 0)
}

func (board) say(text string) {
	f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, text)
		return
	}
	defer f.Close()
	_, _ = fmt.Fprintln(f, "<3>"+text) // it is shown as errors are
}

func (board) end(c *Computer, _ error) {
	settleDisks()
	command := unix.LINUX_REBOOT_CMD_POWER_OFF
	if vm.Restarts(kernelCmdline()) {
		command = unix.LINUX_REBOOT_CMD_RESTART
	}
	if err := unix.Reboot(command); err != nil {
		c.say("power off: " + err.Error())
	}
	select {}
}

// open lets hosts in: through the serial port that carries a line, and through vsock, of
// which at least one has to be there.
func (b board) open(c *Computer) error {
	serial, err := findPort(mux.Name)
	if err == nil {
		go b.onLine(c, serial)
	}
	vsocks := 0
	for _, port := range []uint32{vm.PortPowerOff, vm.PortControl, vm.PortAPI} {
		l, vsockErr := vsock.Listen(port, nil)
		if vsockErr != nil {
			err = errors.Join(err, vsockErr)
			continue
		}
		vsocks++
		go b.onVsock(c, l, port)
	}
	if serial == "" && vsocks == 0 {
		return fmt.Errorf("no host can reach this machine: %w", err)
	}
	return nil
}

// onLine serves whoever comes to the serial port.
func (board) onLine(c *Computer, path string) {
	for c.ctx.Err() == nil {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err == nil {
			err = mux.Guest(f, c.welcome)
		}
		if !errors.Is(err, io.EOF) { // that is how it is without a host
			c.say("serial port: " + err.Error())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (board) onVsock(c *Computer, l net.Listener, port uint32) {
	for {
		conn, err := l.Accept()
		if err != nil {
			c.say("vsock: " + err.Error())
			return
		}
		go c.serve(port, conn, false)
	}
}

// findPort is the device of the virtio serial port of that name.
func findPort(name string) (string, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return "", err
	}
	for _, path := range names {
		text, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(text)) == name {
			return "/dev/" + filepath.Base(filepath.Dir(path)), nil
		}
	}
	return "", fmt.Errorf("there is no serial port %q", name)
}

// kernelCmdline is that of this machine.
func kernelCmdline() string {
	text, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return ""
	}
	return string(text)
}

var _ world = board{}
