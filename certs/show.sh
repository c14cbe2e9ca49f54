#!/bin/sh
# Shows what is in the Secret, what is published, and whether they fit: show.sh [NAMESPACE] [SECRET] [CONFIGURATION]
set -eu
namespace=${1:-pausegen-system}
secret=${2:-pausegen-tls}
name=${3:-zz-pausegen}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
describe() {
    openssl crl2pkcs7 -nocrl -certfile "$1" | openssl pkcs7 -print_certs -noout
    openssl x509 -in "$1" -noout -dates -ext subjectAltName 2>/dev/null || true
}
for key in tls.crt ca.crt next-ca.crt; do
    kubectl -n "$namespace" get secret "$secret" -o "go-template={{index .data \"$key\"}}" | base64 -d >"$folder/$key" 2>/dev/null || true
    if [ -s "$folder/$key" ]; then
        echo "== $key of Secret $namespace/$secret"
        describe "$folder/$key"
    fi
done
for kind in mutatingwebhookconfiguration validatingwebhookconfiguration; do
    for webhook in $(kubectl get "$kind" "$name" -o jsonpath='{.webhooks[*].name}'); do
        kubectl get "$kind" "$name" -o jsonpath="{.webhooks[?(@.name==\"$webhook\")].clientConfig.caBundle}" |
            base64 -d >"$folder/bundle"
        echo "== caBundle of $webhook"
        if [ ! -s "$folder/bundle" ]; then
            echo "empty"
            continue
        fi
        describe "$folder/bundle"
        openssl verify -CAfile "$folder/bundle" "$folder/tls.crt" || true
    done
done
