package kubernetes

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"
)

// An api has the clients of the API server.
type api struct {
	config  *rest.Config
	conns   *connrotation.Dialer
	client  *http.Client
	streams *http.Client // for connections that become streams; none is used twice
	core    corev1client.CoreV1Interface
	net     networkingv1client.NetworkingV1Interface
}

func newAPI(config *rest.Config) (*api, error) {
	c := rest.CopyConfig(config)
	c.QPS = -1 // the API server ensures fairness, and a client-side limit would add errors of its own
	c.UserAgent = "atoll"
	c.WarningHandler = rest.NoWarnings{}
	if c.Proxy == nil { // with a proxy the transport is this client's own, not one shared by all with the same configuration
		c.Proxy = http.ProxyFromEnvironment
	}
	c.ContentConfig.ContentType = runtime.ContentTypeProtobuf
	c.ContentConfig.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	dial := c.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext
	}
	conns := connrotation.NewDialer(connrotation.DialFunc(dial))
	c.Dial = conns.DialContext
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, err
	}
	core, err := corev1client.NewForConfigAndClient(c, client)
	if err != nil {
		return nil, err
	}
	networking, err := networkingv1client.NewForConfigAndClient(c, client)
	if err != nil {
		return nil, err
	}
	streams, err := streamClient(c)
	return &api{c, conns, client, streams, core, networking}, err
}

// streamClient returns a client that reuses no connection for another request.
func streamClient(c *rest.Config) (*http.Client, error) {
	tls, err := rest.TLSConfigFor(c)
	if err != nil {
		return nil, err
	}
	wrapped, err := rest.HTTPWrappersForConfig(c, &http.Transport{
		TLSClientConfig: tls, Proxy: c.Proxy, DialContext: c.Dial, DisableKeepAlives: true, TLSHandshakeTimeout: tlsTimeout,
	})
	return &http.Client{Transport: wrapped}, err
}

// The longest time to connect to an API server, and for the TLS handshake.
const (
	dialTimeout = 30 * time.Second
	tlsTimeout  = 10 * time.Second
)

// The options of most requests.
var (
	getOptions    = metav1.GetOptions{}
	createOptions = metav1.CreateOptions{FieldManager: "atoll"}
	updateOptions = metav1.UpdateOptions{FieldManager: "atoll"}
	patchOptions  = metav1.PatchOptions{FieldManager: "atoll"}
)

// deleteNow returns the options to delete an object at once, if it has that uid; "" is any.
func deleteNow(uid types.UID) metav1.DeleteOptions { return deleteWithin(uid, 0) }

// deleteWithin returns the options to delete an object with that grace period, if it has that
// uid; "" is any.
func deleteWithin(uid types.UID, seconds int64) metav1.DeleteOptions {
	background := metav1.DeletePropagationBackground
	opts := metav1.DeleteOptions{GracePeriodSeconds: &seconds, PropagationPolicy: &background}
	if uid != "" {
		opts.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	return opts
}

// ignoreGone returns nil if the object to delete does not exist, or has been replaced by
// another one.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// isQuota reports whether the API server refused to create an object because of a quota.
func isQuota(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

// close closes all connections.
func (a *api) close() { a.conns.CloseAll() }

// pingServer returns nil if the API server answers.
func (a *api) pingServer(ctx context.Context) error {
	return a.core.RESTClient().Get().AbsPath("/version").Do(ctx).Error()
}

// ensureNamespace creates the namespace of a project, if each project has one.
func (p *Provider) ensureNamespace(ctx context.Context, project string) error {
	if !p.opts.PerProject {
		return nil
	}
	name := p.namespaceOf(project)
	_, err := p.api.core.Namespaces().Get(ctx, name, getOptions)
	if !apierrors.IsNotFound(err) {
		return err
	}
	l := p.names.projectLabels("namespace", project)
	l["pod-security.kubernetes.io/enforce"] = string(p.opts.Profile)
	_, err = p.api.core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: l, Annotations: map[string]string{annotationProject: project},
	}}, createOptions)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
