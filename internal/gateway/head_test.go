package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

func TestProtocol(t *testing.T) {
	for said, want := range map[string]Protocol{
		"GET / HTTP/1.1\r\n":                    HTTP,
		"GET ":                                  HTTP,
		"\r\n\r\n POST /":                       HTTP,
		"GET /\r\n":                             HTTP, // HTTP/0.9
		"BREW /pot HTTP/1.1\r\n":                HTTP,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":      HTTP,
		"CONNECT a.example:443 HTTP/1.1\r\n":    HTTP,
		"\x16\x03\x01":                          TLS,
		"get key\r\n":                           Other,
		"get / HTTP/1.1\r\n":                    HTTP,
		"OPTIONS rtsp://a.example RTSP/1.0\r\n": Other,
		"OPTIONS * HTTP/1.1\r\n":                HTTP,
		"OPTIONS ":                              Unclear,
		"GET\t/ HTTP/1.1":                       HTTP,
		"GET\v/\fhttp/1.1\n":                    HTTP,
		"BREW\t/\thttp/1.1\n":                   HTTP,
		"GET /\x00 HTTP/1.1":                    HTTP,
		"{\"jsonrpc\":":                         Other,
		"user: HTTP/1.1\n":                      HTTP,
		"PROXY TCP4 1.2.3.4":                    HTTP,
		"\r\n\r\n\x00\r\nQU":                    Unclear,
		proxySignature + "!":                    HTTP,
		"\x16\x01":                              TLS,
		"\x15\x03\x01\x00\x02":                  TLS,
		"\x16\x10":                              Other,
		"\x80\x2e\x01\x03\x03":                  TLS,
		"\x80\x2e\x01":                          Unclear,
		"\x80\x01\x00\x01":                      Other, // of Thrift
		"\x16\x02":                              TLS,
		"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n":    Other,
		"*1\r\n$4\r\nPING\r\n":                  Other,
		"set key 0 0 1\r\n":                     Other,
		"NICK me\r\n":                           Other,
		"\x00\x00\x00\x08\x04\xd2\x16\x2f":      Other, // of PostgreSQL
		"0032git-upload-pack /a.git\x00host=":   Other,
		"":                                      Unclear, "\r\n": Unclear, "G": Unclear, "GET": Unclear, "BREW /pot HTTP/1.1": Unclear, "\x16": Unclear, "PRI * ": Unclear,
	} {
		if got := protocolOf([]byte(said)); got != want {
			t.Errorf("%q: got %d, want %d", said, got, want)
		}
	}
}

// helloOf returns the ClientHello that a client with the configuration sends.
func helloOf(t *testing.T, config *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		defer client.Close()
		_ = tls.Client(client, config).HandshakeContext(t.Context())
	}()
	header := make([]byte, 5)
	if _, err := io.ReadFull(server, header); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(header[3])<<8|int(header[4]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	return append(header, body...)
}

// inRecords returns a ClientHello in records of size bytes.
func inRecords(hello []byte, size int) []byte {
	var all []byte
	for body := hello[5:]; len(body) > 0; {
		n := min(size, len(body))
		all = append(all, hello[0], hello[1], hello[2], byte(n>>8), byte(n))
		all = append(all, body[:n]...)
		body = body[n:]
	}
	return all
}

func TestReadHead(t *testing.T) {
	hello := helloOf(t, &tls.Config{ServerName: "a.example", MinVersion: tls.VersionTLS12})
	large := helloOf(t, &tls.Config{ServerName: "b.example", MinVersion: tls.VersionTLS12, NextProtos: strings.Fields(strings.Repeat("protocol-number-one ", 700))})
	if len(large) < 14<<10 {
		t.Fatalf("the large hello has %d bytes", len(large))
	}
	anonymous := helloOf(t, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	for name, c := range map[string]struct {
		client, server string
		chunk          int // of the client's writes; 0 for one write
		want           Head
		err            error
	}{
		"server first":         {server: "220 hello\r\n", want: Head{Server: []byte("220 hello\r\n")}},
		"line by line":         {client: "SSH-2.0-x\r\n", chunk: 1, want: Head{Client: []byte("SSH-2.0-x\r\n")}},
		"request byte by byte": {client: "BREW / HTTP/1.1\r\n", chunk: 1, want: Head{Protocol: HTTP, Client: []byte("BREW / HTTP/1.1\r\n")}},
		"TLS":                  {client: string(hello), want: Head{Protocol: TLS, ServerName: "a.example", Client: hello}},
		"TLS byte by byte":     {client: string(hello), chunk: 1, want: Head{Protocol: TLS, ServerName: "a.example", Client: hello}},
		"TLS in records":       {client: string(inRecords(hello, 100)), want: Head{Protocol: TLS, ServerName: "a.example", Client: inRecords(hello, 100)}},
		"large TLS":            {client: string(large), chunk: 1000, want: Head{Protocol: TLS, ServerName: "b.example", Client: large}},
		"TLS without a name":   {client: string(anonymous), want: Head{Protocol: TLS, Client: anonymous}},
		"a warning, then TLS":  {client: "\x15\x03\x01\x00\x02\x01\x5a" + string(hello), want: Head{Protocol: TLS, ServerName: "a.example", Client: append([]byte("\x15\x03\x01\x00\x02\x01\x5a"), hello...)}},
		"TLS of SSL 2":         {client: "\x80\x2e\x01\x03\x03\x00\x15\x00\x00\x00\x10", err: errHello},
		"HTTP/2 server first":  {client: "PRI * HTTP/2.0\r\n", server: "\x00\x00\x00\x04\x00\x00\x00\x00\x00", want: Head{Protocol: HTTP, Client: []byte("PRI * HTTP/2.0\r\n"), Server: []byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00")}},
		"TLS, then nonsense":   {client: "\x16\x03\x01\x00\x05hello", err: errHello},
		"a long line":          {client: strings.Repeat("x", maxLine+1), chunk: 2 << 10, err: errLongLine},
		"nothing":              {want: Head{Protocol: Unclear}},
	} {
		t.Run(name, func(t *testing.T) {
			ours, client := net.Pipe()
			theirs, server := net.Pipe()
			defer ours.Close()
			defer theirs.Close()
			defer client.Close()
			said := make(chan struct{}) // by the server
			go func() {
				if c.server == "" {
					defer client.Close()
				} else {
					<-said
				}
				for rest := []byte(c.client); len(rest) > 0; {
					n := len(rest)
					if c.chunk > 0 {
						n = min(n, c.chunk)
					}
					if _, err := client.Write(rest[:n]); err != nil {
						return
					}
					rest = rest[n:]
				}
			}()
			go func() {
				if c.server == "" {
					_, _ = io.Copy(io.Discard, server)
				} else {
					_, _ = io.WriteString(server, c.server)
					close(said)
				}
				server.Close()
			}()
			got, err := ReadHead(ours, theirs)
			if !errors.Is(err, c.err) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			if err == nil && (got.Protocol != c.want.Protocol || got.ServerName != c.want.ServerName || !bytes.Equal(got.Client, c.want.Client) || !bytes.Equal(got.Server, c.want.Server)) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// A client that stops early passes, but not if it goes on as TLS or HTTP.
func TestUnclear(t *testing.T) {
	for _, c := range []struct {
		first, then string
		want        error
	}{
		{"hello", " world\r\n", nil},
		{"hello", "\x00", nil},
		{"BRE", "W / HTTP/1.1\r\n", errLate},
		{"G", "ET / HTTP/1.1\r\n", errLate},
		{"\x16", "\x03\x01", errLate},
		{"x", strings.Repeat("x", maxLine), errLongLine},
	} {
		synctest.Test(t, func(t *testing.T) {
			ours, client := net.Pipe()
			theirs, server := net.Pipe()
			began := time.Now()
			go func() {
				_, _ = io.WriteString(client, c.first)
				time.Sleep(time.Minute)
				_, _ = io.WriteString(client, c.then)
				client.Close()
			}()
			head, err := ReadHead(ours, theirs)
			if took := time.Since(began); err != nil || head.Protocol != Unclear || string(head.Client) != c.first || took != lineTimeout {
				t.Errorf("%q: got %+v, %v after %s", c.first, head, err, took)
			}
			rest, err := io.ReadAll(head.Watch(ours))
			if !errors.Is(err, c.want) || err == nil && string(rest) != c.then {
				t.Errorf("%q, then %q: got %q, %v, want %v", c.first, c.then, rest, err, c.want)
			}
			for _, c := range []net.Conn{ours, client, theirs, server} {
				c.Close()
			}
		})
	}
}

// A client that begins like TLS has to go on.
func TestSlowHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, client := net.Pipe()
		theirs, server := net.Pipe()
		began := time.Now()
		go func() { _, _ = io.WriteString(client, "\x16\x03\x01") }()
		_, err := ReadHead(ours, theirs)
		if took := time.Since(began); !errors.Is(err, errHello) || took != helloTimeout {
			t.Errorf("got %v after %s, want %v after %s", err, took, errHello, helloTimeout)
		}
		for _, c := range []net.Conn{ours, client, theirs, server} {
			c.Close()
		}
	})
}
