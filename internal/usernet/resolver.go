package usernet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// A Resolver answers DNS questions. The caller may change the answer. Resolve must return soon
// after ctx has ended, and may be called at once from many goroutines.
type Resolver interface {
	// Resolve asks question, for signed records too if dnssec.
	Resolve(ctx context.Context, question dns.Question, dnssec bool) (*dns.Msg, error)
}

const (
	queryTimeout = 10 * time.Second // for one question, all servers together
	tryTimeout   = 3 * time.Second  // for one server
	// udpSize passes everywhere without fragmentation (DNS flag day 2020); longer answers come by
	// TCP.
	udpSize = 1232
	// confAge is the time between two checks of resolv.conf for changes.
	confAge = 2 * time.Second
)

// SystemResolver asks the servers of a resolv.conf, in their order, each by UDP and, if the answer
// does not fit, by TCP.
type SystemResolver struct {
	path string

	mu      sync.Mutex
	checked time.Time // guarded by mu
	changed time.Time // guarded by mu: the file's time when it was read
	servers []string  // guarded by mu
}

// NewSystemResolver returns a resolver that reads path when it is first asked, and again when the
// file has changed.
func NewSystemResolver(path string) *SystemResolver { return &SystemResolver{path: path} }

// Resolve returns the first answer that is not a failure of its server.
func (r *SystemResolver) Resolve(ctx context.Context, question dns.Question, dnssec bool) (*dns.Msg, error) {
	servers, err := r.serverAddresses()
	if err != nil {
		return nil, err
	}
	return askServers(ctx, servers, question, dnssec)
}

// askServers returns the first answer of servers that is not a failure of its server.
func askServers(ctx context.Context, servers []string, question dns.Question, dnssec bool) (*dns.Msg, error) {
	q := &dns.Msg{Question: []dns.Question{question}}
	q.RecursionDesired = true
	q.SetEdns0(udpSize, dnssec)

	var last *dns.Msg
	var errs []error
	for _, server := range servers {
		q.Id = dns.Id()
		a, err := askServer(ctx, q, server)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", server, err))
		case a.Rcode == dns.RcodeSuccess, a.Rcode == dns.RcodeNameError:
			return a, nil
		default:
			last = a
		}
		if ctx.Err() != nil {
			break
		}
	}
	if last != nil {
		return last, nil
	}
	return nil, errors.Join(errs...)
}

// askServer asks one server by UDP, and by TCP if the answer is truncated.
func askServer(ctx context.Context, q *dns.Msg, server string) (*dns.Msg, error) {
	a, err := queryOnce(ctx, q, "udp", server)
	if err == nil && a.Truncated {
		a, err = queryOnce(ctx, q, "tcp", server)
	}
	return a, err
}

// queryOnce sends one query by network, and returns its answer.
func queryOnce(ctx context.Context, q *dns.Msg, network, server string) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	c := dns.Client{Net: network, UDPSize: udpSize, Timeout: tryTimeout}
	conn, err := c.DialContext(ctx, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	// The client watches ctx's deadline only.
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	a, _, err := c.ExchangeWithConnContext(ctx, q, conn)
	if err != nil {
		return nil, err
	}
	if len(a.Question) != 1 || !strings.EqualFold(a.Question[0].Name, q.Question[0].Name) || a.Question[0].Qtype != q.Question[0].Qtype {
		return nil, errors.New("answers another question")
	}
	return a, nil
}

// serverAddresses returns the servers as addresses to dial.
func (r *SystemResolver) serverAddresses() ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.servers != nil && time.Since(r.checked) < confAge {
		return r.servers, nil
	}
	info, err := os.Stat(r.path)
	if err != nil {
		return nil, err
	}
	r.checked = time.Now()
	if r.servers != nil && info.ModTime().Equal(r.changed) {
		return r.servers, nil
	}
	conf, err := dns.ClientConfigFromFile(r.path)
	if err != nil {
		return nil, err
	}
	if len(conf.Servers) == 0 {
		return nil, fmt.Errorf("%s names no server", r.path)
	}
	servers := make([]string, 0, len(conf.Servers))
	for _, s := range conf.Servers {
		servers = append(servers, net.JoinHostPort(s, conf.Port))
	}
	r.servers, r.changed = servers, info.ModTime()
	return servers, nil
}
