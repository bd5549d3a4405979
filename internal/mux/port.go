package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A connection begins with a line that names its port, and a line that answers it, as on the socket of a
// Firecracker machine: "CONNECT 52\n", "OK 1073\n". The other end chooses the number in the answer.

// maxHandshake bounds the bytes of such a line.
const maxHandshake = 32

// ErrRefused means that the other end has hung up instead of answering, since nothing listens on
// the port.
var ErrRefused = errors.New("nothing listens on that port")

// Connect asks the other end of conn for a port, and waits for the answer as long as ctx lasts.
// After an error conn is useless.
func Connect(ctx context.Context, conn net.Conn, port uint32) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := fmt.Fprintf(conn, "CONNECT %d\n", port)
	var answer string
	if err == nil {
		answer, err = readLine(conn)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return ErrRefused
	}
	if err != nil {
		return err
	}
	number, ok := strings.CutPrefix(answer, "OK ")
	if _, err := strconv.ParseUint(number, 10, 32); !ok || err != nil {
		return fmt.Errorf("the other end answers %q to CONNECT, not OK and a number", answer)
	}
	return nil
}

// Asked reads the port that the other end of conn wants. Answer with Grant, or close conn.
func Asked(conn net.Conn, wait time.Duration) (port uint32, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return 0, err
	}
	text, err := readLine(conn)
	if err != nil {
		return 0, err
	}
	number, ok := strings.CutPrefix(text, "CONNECT ")
	n, err := strconv.ParseUint(number, 10, 32)
	if !ok || err != nil {
		return 0, fmt.Errorf("the other end sends %q, not CONNECT and a port", text)
	}
	return uint32(n), conn.SetReadDeadline(time.Time{})
}

// Grant answers that the requested port is at the other end of conn from now on.
func Grant(conn io.Writer, port uint32) error {
	_, err := fmt.Fprintf(conn, "OK %d\n", port)
	return err
}

// readLine reads up to the end of a line, and not a byte more.
func readLine(r io.Reader) (string, error) {
	var text []byte
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(text), nil
		}
		if text = append(text, b[0]); len(text) > maxHandshake {
			return "", fmt.Errorf("the other end sends %q, which is not an answer", text)
		}
	}
}

// Name is the name of the serial port of a virtual machine that carries a session.
const Name = "atoll"
