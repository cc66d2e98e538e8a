package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
)

// servers is the URL of a cluster:
// scheme://user:password@host:port,host:port/name?parameters.
type servers struct {
	scheme   string
	user     *url.Userinfo // nil if absent
	password string        // "" if absent
	hosts    []string
	name     string // path after the hosts, or ""
	query    url.Values
}

// parseServers parses a URL with several hosts, which url.Parse refuses. Errors contain
// only the names of parameters.
func parseServers(address string, parameters ...string) (s servers, err error) {
	invalid := usagef("the URL of the database is not valid: special characters of a user or password are percent-encoded")
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		return s, invalid
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, name, _ := strings.Cut(rest, "/")
	userinfo, hosts := "", authority
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		userinfo, hosts = authority[:at], authority[at+1:]
	}
	s.scheme, s.hosts = scheme, strings.Split(hosts, ",")
	for _, host := range s.hosts {
		u, err := url.Parse(scheme + "://" + userinfo + "@" + host + "/" + name)
		if err != nil || u.Hostname() == "" || u.Host != host || strings.Contains(name, "/") {
			return s, invalid
		}
		s.name = strings.TrimPrefix(u.Path, "/")
		s.user = u.User
		if userinfo == "" {
			s.user = nil
		}
	}
	s.password, _ = s.user.Password()
	s.query, err = url.ParseQuery(query)
	if err != nil {
		return s, invalid
	}
	for parameter := range s.query {
		if !slices.Contains(parameters, parameter) {
			return s, usagef("the URL of the database has the parameter %q; there are %s", parameter, strings.Join(parameters, ", "))
		}
	}
	return s, nil
}

func (s servers) servers(prefix string) string {
	return prefix + strings.Join(s.hosts, ","+prefix)
}

// tls returns the settings of ca, cert and key, or nil without them.
func (s servers) tls() (*tls.Config, error) {
	ca := s.query.Get("ca")
	cert := s.query.Get("cert")
	key := s.query.Get("key")
	switch {
	case (cert == "") != (key == ""):
		return nil, usagef("the URL of the database: cert and key belong together")
	case ca == "" && cert == "":
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the file %s does not contain a certificate", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("the files %s and %s", cert, key), err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
