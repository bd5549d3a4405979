// Package endpoint checks the addresses of services, for programs that do not link their clients.
package endpoint

import (
	"errors"
	"fmt"
	"net"
	"net/url"
)

// Check returns an error unless text is the URL of an allowed endpoint:
// "https://host:port", or, if plain is set or the host is a loopback address,
// "http://host:port".
func Check(text string, plain bool) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("endpoint: %w", err)
	case u.User != nil:
		return errors.New("endpoint: it contains credentials: configure them separately")
	case (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("endpoint %q: write it like https://host:port", text)
	case u.Scheme == "http" && !plain && !isLocal(u.Hostname()):
		return fmt.Errorf("endpoint %s: without TLS anybody on the network can read the data: use https, or allow plain HTTP", text)
	}
	return nil
}

// isLocal reports whether host is localhost or a loopback address.
func isLocal(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
