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

// A vmPlatform is the platform of a Computer that has a kernel to itself.
type vmPlatform struct{}

func (vmPlatform) prepareSystem(*Computer) error {
	for _, m := range kernelMounts {
		if err := m.mountBelow(""); err != nil {
			return err
		}
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) // else the kernel would reset at once on a host's ctrl-alt-del
	return loadModules()
}

func (vmPlatform) setUp(_ *Computer, s *Setup) error { return s.applySetup() }

func (vmPlatform) setTime(nanoseconds int64) error { return setTime(nanoseconds) }

func (vmPlatform) openConsole() (*os.File, error) {
	return os.OpenFile("/dev/console", os.O_WRONLY|unix.O_NOCTTY, 0)
}

func (vmPlatform) logMessage(text string) {
	f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, text)
		return
	}
	defer f.Close()
	_, _ = fmt.Fprintln(f, "<3>"+text) // the level of errors
}

func (vmPlatform) shutDown(c *Computer, _ error) {
	settleDisks()
	command := unix.LINUX_REBOOT_CMD_POWER_OFF
	if vm.Restarts(kernelCmdline()) {
		command = unix.LINUX_REBOOT_CMD_RESTART
	}
	if err := unix.Reboot(command); err != nil {
		c.logMessage("power off: " + err.Error())
	}
	select {}
}

// openPorts lets hosts connect: through the serial port that carries sessions, and through vsock.
// At least one has to exist.
func (b vmPlatform) openPorts(c *Computer) error {
	serial, err := findPort(mux.Name)
	if err == nil {
		go b.serveSerial(c, serial)
	}
	vsocks := 0
	for _, port := range []uint32{vm.PortPowerOff, vm.PortControl, vm.PortAPI} {
		l, vsockErr := vsock.Listen(port, nil)
		if vsockErr != nil {
			err = errors.Join(err, vsockErr)
			continue
		}
		vsocks++
		go b.serveVsock(c, l, port)
	}
	if serial == "" && vsocks == 0 {
		return fmt.Errorf("no host can reach this machine: %w", err)
	}
	return nil
}

// serveSerial serves the hosts that connect to the serial port.
func (vmPlatform) serveSerial(c *Computer, path string) {
	for c.ctx.Err() == nil {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err == nil {
			err = mux.Guest(f, c.serveSession)
		}
		if !errors.Is(err, io.EOF) { // EOF means that there is no host
			c.logMessage("serial port: " + err.Error())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (vmPlatform) serveVsock(c *Computer, l net.Listener, port uint32) {
	for {
		conn, err := l.Accept()
		if err != nil {
			c.logMessage("vsock: " + err.Error())
			return
		}
		go c.serveConn(port, conn, false)
	}
}

// findPort returns the device of the virtio serial port of that name.
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
	return "", fmt.Errorf("no serial port %q", name)
}

// kernelCmdline returns the command line of this machine's kernel.
func kernelCmdline() string {
	text, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return ""
	}
	return string(text)
}

var _ platform = vmPlatform{}
