package kubernetes

import (
	"context"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// blockedByDefault lists what NetworkOn blocks: addresses of the cluster, of the networks
// around it, and of its machines.
var blockedByDefault = []string{
	"10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fe80::/10", "::1/128",
}

// createPolicy creates the network policy of a sandbox: it blocks incoming connections, and
// allows outgoing ones as the spec says. Whether the cluster's network obeys it is another
// matter: see Enforces.
func (p *Provider) createPolicy(ctx context.Context, r *record) error {
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{
			Name: p.names.sandboxName(r.ID), Labels: p.names.sandboxLabels(roleSandbox, &r.Note.Spec), OwnerReferences: ownedBy(r),
		},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{labelOwner: string(p.names), labelSession: r.ID}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Egress:      egressRules(r.Note.Spec.Network),
		},
	}
	return remote.RunToEnd(ctx, func(ctx context.Context) error {
		_, err := p.api.net.NetworkPolicies(r.Object.record.Namespace).Create(ctx, policy, createOptions)
		if apierrors.IsAlreadyExists(err) { // of a sandbox with this id that is just being removed
			if err = ignoreGone(p.api.net.NetworkPolicies(r.Object.record.Namespace).Delete(ctx, policy.Name, deleteNow(""))); err == nil {
				_, err = p.api.net.NetworkPolicies(r.Object.record.Namespace).Create(ctx, policy, createOptions)
			}
		}
		return err
	})
}

// egressRules returns the rules for the addresses that a sandbox may reach.
func egressRules(n atoll.Network) []networkingv1.NetworkPolicyEgressRule {
	var to []networkingv1.NetworkPolicyPeer
	block := func(cidr string, except ...string) {
		to = append(to, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}})
	}
	switch n.Mode {
	case atoll.NetworkOn:
		four, six := splitFamilies(blockedByDefault)
		block("0.0.0.0/0", four...)
		block("::/0", six...)
	case atoll.NetworkEgress:
	default:
		return nil
	}
	for _, allowed := range n.Allow {
		if prefix, err := prefixOf(allowed); err == nil {
			block(prefix.String())
		}
	}
	if len(to) == 0 { // a rule without peers allows all peers
		return nil
	}
	rules := []networkingv1.NetworkPolicyEgressRule{{To: to}}
	if n.Mode == atoll.NetworkOn { // only the cluster's DNS server resolves names
		dns := networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceSystem}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
		}
		rules = append(rules, networkingv1.NetworkPolicyEgressRule{To: []networkingv1.NetworkPolicyPeer{dns}})
	}
	return rules
}

func splitFamilies(cidrs []string) (four, six []string) {
	for _, c := range cidrs {
		if strings.Contains(c, ":") {
			six = append(six, c)
		} else {
			four = append(four, c)
		}
	}
	return four, six
}

// prefixOf parses a network or an address.
func prefixOf(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err
}

// checkAllowList rejects host names: a NetworkPolicy has only networks. Kinds: ErrUnsupported.
func checkAllowList(spec *atoll.Spec) error {
	for _, allowed := range spec.Network.Allow {
		if _, err := prefixOf(allowed); err != nil {
			return atoll.Errorf("create", spec.Name, atoll.ErrUnsupported, "allow %q: a NetworkPolicy has no host names; use networks or addresses like 192.0.2.0/24", allowed)
		}
	}
	return nil
}
