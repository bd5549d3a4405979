package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
)

func newPortForward(a *app) *cobra.Command {
	address := "127.0.0.1"
	cmd := &cobra.Command{
		Use:   "port-forward [flags] SANDBOX [LOCAL:]PORT...",
		Short: "Forward local TCP ports to ports inside a sandbox",
		Long: `Port-forward listens on local ports and connects whoever comes to ports inside
the sandbox, on loopback there, until it is interrupted. Without LOCAL the ports
have the same number; a LOCAL of 0 is any free one. Each is printed once it
listens. No network of the sandbox is needed.`,
		Example: `  atoll port-forward web 8080:80
  atoll port-forward web 0:80`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			ports, err := parseForwards(args[1:])
			if err != nil {
				return err
			}
			return a.withSandbox(cmd, args[0], func(ctx context.Context, _ *connection, sb atoll.Sandbox) error {
				st, err := sb.Status(ctx)
				if err != nil {
					return err
				}
				if st.State != atoll.StateRunning && st.State != atoll.StatePaused {
					return atoll.E("port-forward", args[0], atoll.ErrStopped, nil)
				}
				return a.forward(ctx, sb, address, ports)
			})
		},
	}
	cmd.Flags().StringVar(&address, "address", address, "local `address` to listen on")
	return cmd
}

// A forwarding connects a local port to one inside.
type forwarding struct{ local, inside int }

func parseForwards(args []string) ([]forwarding, error) {
	var all []forwarding
	for _, arg := range args {
		bad := usagef("port %q: write it like 80, 8080:80 or 0:80", arg)
		local, inside, both := strings.Cut(arg, ":")
		if !both {
			inside = local
		}
		n, err := parsePort(inside)
		if err != nil {
			return nil, bad
		}
		l := n
		if both && local != "0" {
			if l, err = parsePort(local); err != nil {
				return nil, bad
			}
		} else if both {
			l = 0
		}
		all = append(all, forwarding{l, n})
	}
	return all, nil
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return int(n), err
}

// forward serves until ctx ends, which is how it is meant to end.
func (a *app) forward(ctx context.Context, sb atoll.Sandbox, address string, ports []forwarding) error {
	var listeners []net.Listener
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer serving.Wait()
	defer func() {
		cancel()
		for _, l := range listeners {
			l.Close()
		}
	}()
	for _, f := range ports {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(f.local)))
		if err != nil {
			return atoll.E("listen", "", atoll.ErrUnavailable, err)
		}
		listeners = append(listeners, l)
		if _, err := fmt.Fprintf(a.stdout, "%s -> %d\n", l.Addr(), f.inside); err != nil {
			return err
		}
		serving.Go(func() { a.accept(ctx, l, sb, f.inside) })
	}
	<-ctx.Done()
	return nil
}

func (a *app) accept(ctx context.Context, l net.Listener, sb atoll.Sandbox, port int) {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		local, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				a.say("%v", err)
			}
			return
		}
		conns.Go(func() {
			defer local.Close()
			inside, err := atoll.Dial(ctx, sb, port)
			if err != nil {
				if ctx.Err() == nil {
					a.say("%v", err)
				}
				return
			}
			defer inside.Close()
			splice(ctx, local, inside)
		})
	}
}

// splice copies both ways until both have ended, or ctx.
func splice(ctx context.Context, a, b net.Conn) {
	stop := context.AfterFunc(ctx, func() {
		a.Close()
		b.Close()
	})
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { oneWay(a, b) })
	both.Go(func() { oneWay(b, a) })
	both.Wait()
}

// oneWay copies until from ends, and lets to know.
func oneWay(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	to.Close()
	from.Close()
}
