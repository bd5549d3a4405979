package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// handshakeTimeout is the time that each handshake of TLS may take.
const handshakeTimeout = 15 * time.Second

// The names of protocols in TLS.
const (
	alpnHTTP1 = "http/1.1"
	alpnHTTP2 = "h2"
)

// ServeTLS serves a connection of a client that speaks TLS: it ends TLS with a certificate of the authority, and checks the requests
// inside. To the server it speaks TLS and the same version of HTTP. It owns both connections, of which head is the beginning.
func (g *Gateway) ServeTLS(ctx context.Context, client net.Conn, head Head, server net.Conn, to Target) {
	protocols := slices.DeleteFunc(slices.Clone(head.Protocols), func(p string) bool { return p != alpnHTTP1 && p != alpnHTTP2 })
	c := g.newConn(ctx, client, to)
	c.serverName = head.ServerName
	defer c.endAll()
	defer context.AfterFunc(ctx, c.abortAll)()
	if len(head.Protocols) > 0 && len(protocols) == 0 {
		g.reportTLS(head.ServerName, to, "a rule names this host, and the connection is not for HTTP: "+strings.Join(head.Protocols, ", "))
		c.resetClient()
		return
	}
	outer, err := g.secureServer(ctx, c.trackServer(server), head.ServerName, protocols)
	switch certErr := (*tls.CertificateVerificationError)(nil); {
	case errors.As(err, &certErr):
		c.failure = "its certificate is not valid: " + certErr.Err.Error()
		if slices.Contains(protocols, alpnHTTP1) {
			protocols = []string{alpnHTTP1}
		}
	case err != nil:
		g.opts.Log.Debug("tls", "host", head.ServerName, "address", to.Addr.String(), "err", err)
		c.resetClient() // as the server did
		return
	default:
		c.first, protocols = outer, protocolsOf(outer)
		c.protocol = outer.ConnectionState().NegotiatedProtocol
	}
	below := &batchConn{Conn: client}
	inner, err := g.secureClient(ctx, below, head, protocols)
	if err != nil {
		g.opts.Log.Debug("tls", "host", head.ServerName, "err", err)
		if refusal := (*net.OpError)(nil); errors.As(err, &refusal) && refusal.Op == "remote error" {
			g.reportTLS(head.ServerName, to, "the program does not trust the certificate of Atoll's gateway: "+refusal.Err.Error())
		}
		c.resetClient()
		return
	}
	c.Conn, c.source = &secureConn{Conn: inner, below: below}, inner
	c.serveRequests(inner.ConnectionState().NegotiatedProtocol == alpnHTTP2)
}

// protocolsOf returns the protocol that the server has chosen, as a list.
func protocolsOf(c *tls.Conn) []string {
	if p := c.ConnectionState().NegotiatedProtocol; p != "" {
		return []string{p}
	}
	return nil
}

// secureServer begins TLS with the server, which has to have a valid certificate for name.
func (g *Gateway) secureServer(ctx context.Context, server net.Conn, name string, protocols []string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	c := tls.Client(&batchConn{Conn: server}, &tls.Config{ServerName: name, NextProtos: protocols, RootCAs: g.opts.Roots, ClientSessionCache: g.sessions})
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// secureClient begins TLS with the client, of which head is the beginning.
func (g *Gateway) secureClient(ctx context.Context, client net.Conn, head Head, protocols []string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	leaf, err := g.opts.Authority.issueLeaf(head.ServerName)
	if err != nil {
		return nil, err
	}
	c := tls.Server(newPrefixed(client, head.Client), &tls.Config{Certificates: []tls.Certificate{*leaf}, NextProtos: protocols})
	return c, c.HandshakeContext(ctx)
}

// dialSecure returns the connection of TLS to the server that there is already, or another that speaks the same protocol.
func (c *conn) dialSecure(ctx context.Context, _, _ string) (net.Conn, error) {
	if c.failure != "" {
		return nil, errors.New(c.failure)
	}
	raw, used, err := c.connectServer(ctx)
	if err != nil || !used {
		return raw, err
	}
	var protocols []string
	if c.protocol != "" {
		protocols = []string{c.protocol}
	}
	secure, err := c.gateway.secureServer(ctx, raw, c.serverName, protocols)
	if err == nil && secure.ConnectionState().NegotiatedProtocol != c.protocol {
		err = fmt.Errorf("the server does not speak %q this time", c.protocol)
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return secure, nil
}
