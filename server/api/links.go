package api

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// LinkOptions configure PortLinks.
type LinkOptions struct {
	// Secret returns the key of the signatures: the same one for all servers that accept each other's
	// links. PortLinks calls it until it succeeds.
	Secret func(ctx context.Context) (string, error)
	// KeyAccount returns the account of the valid API key with this id. Kinds: ErrDenied (there is none
	// any more), ErrUnavailable. It may be nil if there are no keys.
	KeyAccount func(ctx context.Context, id string) (auth.Account, error)
	// TTL is the lifetime of a link; 0 means DefaultLinkTTL.
	TTL time.Duration
	// PublicURL is the URL of the server for browsers, without a path. If it is empty, a link has the
	// address that the request for it used.
	PublicURL string
	// Domain is the domain whose host PORT-ID.Domain is the port PORT of the sandbox ID. Its names have
	// to lead to the server, which must get them in Host. If it is empty, the path of a link names the
	// port.
	Domain string

	now func() time.Time // for tests
}

// DefaultLinkTTL is the default lifetime of a link to a port.
const DefaultLinkTTL = 24 * time.Hour

// PortLinks signs links that open a port of a sandbox in a browser, and checks them. A link opens one port
// of one sandbox, and nothing else of the API. It ends at its time, and before that with the sandbox, with
// the API key that it was made with, and when its account may no longer use the sandbox.
type PortLinks struct {
	opts LinkOptions

	mu     sync.Mutex
	secret []byte
}

// NewPortLinks returns PortLinks.
func NewPortLinks(opts LinkOptions) *PortLinks {
	if opts.now == nil {
		opts.now = time.Now
	}
	opts.TTL = cmp.Or(opts.TTL, DefaultLinkTTL)
	return &PortLinks{opts: opts}
}

// A portLink is the content of a link.
type portLink struct {
	expires time.Time // in seconds
	created uint32    // of the sandbox, in seconds since 1970: another one may have its id later
	issuer  string    // issuerKey and the id of a key, or issuerAccount and the name of an account
	text    string    // the whole link, signed
}

const (
	issuerKey     = "k"
	issuerAccount = "a"
)

// URL returns a link to a port of sb for the account in ctx. base is the URL of the server if
// LinkOptions.PublicURL is empty. Kinds: those of Secret and of sb.Status.
func (l *PortLinks) URL(ctx context.Context, base string, sb atoll.Sandbox, port int) (string, error) {
	base = cmp.Or(l.opts.PublicURL, base)
	u, err := url.Parse(base)
	if err != nil {
		return "", atoll.E("link", sb.ID(), atoll.ErrInvalid, err)
	}
	st, err := sb.Status(ctx)
	if err != nil {
		return "", err
	}
	link := portLink{expires: l.opts.now().Add(l.opts.TTL), created: uint32(st.Created.Unix()), issuer: issuerAccount}
	if account := auth.AccountFrom(ctx); account.Key != "" {
		link.issuer = issuerKey + account.Key
	} else {
		link.issuer += account.Name
	}
	signed, err := l.signLink(ctx, link, sb.ID(), port)
	if err != nil {
		return "", err
	}
	if l.opts.Domain == "" {
		return base + strings.TrimSuffix(PortPath(sb.ID(), port), "/") + linkMark + signed + "/", nil
	}
	u.Host = portHost(sb.ID(), port, l.opts.Domain, u.Port())
	u.Path, u.RawQuery = "/", linkParam+"="+signed
	return u.String(), nil
}

// portHost returns the host that names a port of a sandbox.
func portHost(id string, port int, domain, public string) string {
	host := strconv.Itoa(port) + "-" + id + "." + domain
	if public != "" {
		host += ":" + public
	}
	return host
}

// loadSecret returns the key of the signatures.
func (l *PortLinks) loadSecret(ctx context.Context) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.secret != nil {
		return l.secret, nil
	}
	secret, err := l.opts.Secret(ctx)
	if err != nil {
		return nil, atoll.E("link", "", atoll.ErrUnavailable, err)
	}
	l.secret = []byte(secret)
	return l.secret, nil
}

// macSize is the size of the signature in a link. 128 bits cannot be guessed.
const macSize = 16

// signLink returns a link to the port of the sandbox as text: a signature and what it signs, in base64 for URLs.
func (l *PortLinks) signLink(ctx context.Context, link portLink, id string, port int) (string, error) {
	secret, err := l.loadSecret(ctx)
	if err != nil {
		return "", err
	}
	content := binary.BigEndian.AppendUint32(nil, uint32(link.expires.Unix()))
	content = binary.BigEndian.AppendUint32(content, link.created)
	content = append(content, link.issuer...)
	return base64.RawURLEncoding.EncodeToString(append(linkMAC(secret, content, id, port), content...)), nil
}

// linkMAC returns the signature of the content of a link to a port of a sandbox.
func linkMAC(secret, content []byte, id string, port int) []byte {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "atoll port link 1\n%s\n%d\n", id, port)
	mac.Write(content)
	return mac.Sum(nil)[:macSize]
}

// parseLink returns the content of a link to the port of the sandbox. Kinds: ErrDenied, ErrUnavailable.
func (l *PortLinks) parseLink(ctx context.Context, text, id string, port int) (*portLink, error) {
	bad := atoll.Errorf("", "", atoll.ErrDenied, "the link is not valid for this port: ask for a new one")
	secret, err := l.loadSecret(ctx)
	if err != nil {
		return nil, err
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(data) < macSize+9 {
		return nil, bad
	}
	content := data[macSize:]
	if !hmac.Equal(data[:macSize], linkMAC(secret, content, id, port)) {
		return nil, bad
	}
	return &portLink{
		expires: time.Unix(int64(binary.BigEndian.Uint32(content)), 0),
		created: binary.BigEndian.Uint32(content[4:]),
		issuer:  string(content[8:]),
		text:    text,
	}, nil
}

// authenticateLink returns the credential of a request to a port with a valid link. It returns the zero
// credential if the request has no link. Kinds: ErrDenied, ErrUnavailable.
func (h *Handler) authenticateLink(r *http.Request) (credential, error) {
	p := portRequestOf(r.Context())
	if p == nil || h.opts.Links == nil {
		return credential{}, nil
	}
	links := p.links
	if len(p.cookies) > 0 && !h.isForeignPage(r) {
		links = append(links[:len(links):len(links)], p.cookies...)
	}
	var failed error
	for _, text := range links {
		cred, err := h.verifyLink(r.Context(), p, text)
		if err == nil || atoll.KindOf(err) == atoll.ErrUnavailable {
			return cred, err
		}
		failed = unauthorizedError(err)
	}
	if failed != nil {
		h.refusals.logRefusal(h.log, r)
	} else if p.byHost {
		failed = unauthorizedError(atoll.Errorf("", "", atoll.ErrDenied, "this port opens with a link: ask for a new one"))
	}
	return credential{}, failed
}

// verifyLink returns the credential of a link. Kinds: ErrDenied, ErrUnavailable.
func (h *Handler) verifyLink(ctx context.Context, p *portRequest, text string) (credential, error) {
	id, err := atoll.NormalizeID(p.id)
	if err != nil {
		return credential{}, atoll.E("", "", atoll.ErrDenied, err)
	}
	port, err := parsePort(p.port)
	if err != nil {
		return credential{}, atoll.E("", "", atoll.ErrDenied, err)
	}
	link, err := h.opts.Links.parseLink(ctx, text, id, port)
	if err != nil {
		return credential{}, err
	}
	check := func(ctx context.Context) (auth.Account, error) {
		if !h.opts.Links.opts.now().Before(link.expires) {
			return auth.Account{}, atoll.Errorf("", "", atoll.ErrDenied, "the link has expired: ask for a new one")
		}
		return h.findIssuer(ctx, link.issuer)
	}
	account, err := check(ctx)
	return credential{account: account, link: link, verify: func(ctx context.Context) error {
		_, err := check(ctx)
		return err
	}}, err
}

// findIssuer returns the account that a link was made with, if it still may use the server. Kinds:
// ErrDenied, ErrUnavailable.
func (h *Handler) findIssuer(ctx context.Context, issuer string) (auth.Account, error) {
	if id, ok := strings.CutPrefix(issuer, issuerKey); ok && h.opts.Links.opts.KeyAccount != nil {
		account, err := h.opts.Links.opts.KeyAccount(ctx, id)
		if atoll.KindOf(err) == atoll.ErrDenied {
			err = atoll.Errorf("", "", atoll.ErrDenied, "the link has ended, because its key was removed: ask for a new one")
		}
		return account, err
	}
	if name, ok := strings.CutPrefix(issuer, issuerAccount); ok {
		for _, account := range h.opts.Tokens {
			if account = account.WithDefaults(); account.Name == name {
				return account, nil
			}
		}
	}
	return auth.Account{}, atoll.Errorf("", "", atoll.ErrDenied, "the link has ended, because its account was removed: ask for a new one")
}

// isForeignPage reports whether a browser sends r for a page of another origin, other than to show a page: a cookie
// does not prove then that the user wants it.
func (h *Handler) isForeignPage(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		return err != nil || !isSameHost(u.Host, r.Host)
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); {
	case site == "same-site" || site == "cross-site":
		dest := r.Header.Get("Sec-Fetch-Dest")
		return r.Header.Get("Sec-Fetch-Mode") != "navigate" || dest != "" && dest != "document"
	case site == "" && !h.isSecure(r): // browsers send these headers to https and localhost only
		if referer, err := url.Parse(r.Header.Get("Referer")); err == nil && referer.Host != "" {
			return !isSameHost(referer.Host, r.Host)
		}
		return !strings.Contains(r.Header.Get("Accept"), "text/html")
	}
	return false
}

// isSameHost reports whether a and b are the same without their ports, which a proxy may leave out of Host.
func isSameHost(a, b string) bool { return a != "" && hostName(a) == hostName(b) }

// hostName returns the name in "name:port" or "name", in lower case.
func hostName(host string) string {
	name, _, _ := strings.Cut(strings.ToLower(host), ":")
	return name
}

type linkKey struct{}

// withLink returns a context for linkOf. A visitor makes its calls, with the account of the link but without its token.
func withLink(ctx context.Context, link *portLink) context.Context {
	o := auth.OriginFrom(ctx)
	o.Via = "link"
	return context.WithValue(auth.WithOrigin(ctx, o), linkKey{}, link)
}

// linkOf returns the link that the request of ctx was admitted with, or nil.
func linkOf(ctx context.Context) *portLink {
	link, _ := ctx.Value(linkKey{}).(*portLink)
	return link
}

// checkSandbox returns ErrNotFound if the link was made for another sandbox with the same id.
func (link *portLink) checkSandbox(ctx context.Context, sb atoll.Sandbox) error {
	st, err := sb.Status(ctx)
	if err == nil && uint32(st.Created.Unix()) != link.created {
		err = atoll.Errorf("", sb.ID(), atoll.ErrNotFound, "the sandbox of the link was removed")
	}
	return err
}
