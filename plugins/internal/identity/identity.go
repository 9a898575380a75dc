// Package identity makes the short-lived certificates with which a host and one
// plugin process know each other. They do what go-plugin's AutoMTLS does, in the
// same places (PLUGIN_CLIENT_CERT and the handshake line), with P-256 keys: making
// its P-521 pair takes both sides about 40 ms at every launch, these take 2.
package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// serverName is in every certificate; each side trusts exactly one certificate, so
// the name says nothing.
const serverName = "localhost"

// ClientCertEnv is where go-plugin hands the host's certificate to the plugin.
const ClientCertEnv = "PLUGIN_CLIENT_CERT"

// New makes a key and its self-signed certificate.
func New() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: serverName},
		DNSNames:     []string{serverName},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IsCA:         true,
		// A clock that is set back while the process lives must not end it, nor must
		// a long life: the key never leaves the process.
		NotBefore:             now.Add(-24 * time.Hour),
		NotAfter:              now.AddDate(10, 0, 0),
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// PEM returns the certificate, without its key, as go-plugin passes it on.
func PEM(c tls.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}))
}

// Client is the host's configuration. go-plugin adds the plugin's certificate, the
// only one then trusted, when it has read the handshake.
func Client(own tls.Certificate) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{own},
		ServerName:   serverName,
		MinVersion:   tls.VersionTLS12,
		// Without a certificate in the handshake nobody is trusted, rather than
		// whoever the system trusts.
		RootCAs: x509.NewCertPool(),
	}
}

// Server is the plugin's configuration: the host whose certificate is clientPEM may
// connect, and nobody else.
func Server(own tls.Certificate, clientPEM string) (*tls.Config, error) {
	host := x509.NewCertPool()
	if !host.AppendCertsFromPEM([]byte(clientPEM)) {
		return nil, errors.New(ClientCertEnv + " holds no certificate")
	}
	return &tls.Config{
		Certificates: []tls.Certificate{own},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    host,
		MinVersion:   tls.VersionTLS12,
	}, nil
}
