//! An OpenID provider at which one person is logged in. It checks what real providers check: the
//! client and its secret, the address to return to, the PKCE verifier, and that a code is used
//! once. A test says what its tokens contain, and how they are signed.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use url::form_urlencoded;

use crate::server::{Received, Reply, Service};

/// The bytes of PKCS #8 before the key of PKCS #1, for an RSA key of 2048 bits.
const PKCS8_PREFIX: usize = 26;
/// The lifetime of a token in seconds.
const LIFETIME: i64 = 300;

/// One key for all tests, because it takes long to make.
static RSA: LazyLock<Key> = LazyLock::new(|| {
    let pair = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048);
    let der = pair.expect("the system has randomness").serialize_der();
    let key = EncodingKey::from_rsa_der(der.get(PKCS8_PREFIX..).unwrap_or_default());
    Key { kid: "rsa-1".to_owned(), algorithm: Algorithm::RS256, key }
});

/// How an ID token is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Signing {
    /// With the newest published key.
    #[default]
    Right,
    /// Not at all: `alg: none`.
    Nothing,
    /// `HS256` with the secret of the client.
    Secret,
    /// `HS256` with the published key as the secret.
    PublicKey,
    /// With a key that is not published, under the name of one that is.
    Stranger,
}

#[derive(Debug, Clone)]
struct Key {
    kid: String,
    algorithm: Algorithm,
    key: EncodingKey,
}

impl Key {
    fn elliptic(kid: String) -> Self {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("the system has randomness");
        Self { kid, algorithm: Algorithm::ES256, key: EncodingKey::from_ec_der(&pair.serialize_der()) }
    }

    fn public(&self) -> Jwk {
        let mut jwk = Jwk::from_encoding_key(&self.key, self.algorithm).expect("a key that was just made");
        jwk.common.key_id = Some(self.kid.clone());
        jwk
    }
}

/// A code that was given out.
#[derive(Debug, Clone)]
struct Code {
    nonce: String,
    challenge: String,
    redirect_uri: String,
}

#[derive(Debug, Clone)]
pub struct OidcProvider {
    /// What the ID token says of the person, over what it always says. `null` removes a claim.
    pub claims: Value,
    /// What the userinfo says, beside the subject.
    pub userinfo: Value,
    pub signing: Signing,
    /// What its configuration says, over what it always says. `null` removes a field.
    pub document: Value,
    /// The status of its refusal of a code.
    pub refusal: u16,
    /// Whether the exchange of a code redirects elsewhere.
    pub redirects: bool,
    /// Whether its name ends with a slash.
    pub slash: bool,
    /// The only way in which it takes the secret.
    pub method: &'static str,
    /// The codes that were exchanged for tokens.
    pub exchanged: usize,
    pub requests: Vec<Received>,
    keys: Vec<Key>,
    codes: BTreeMap<String, Code>,
    count: usize,
}

impl Default for OidcProvider {
    fn default() -> Self {
        Self {
            claims: json!({"preferred_username": "ann", "groups": ["ml-oncall"]}),
            userinfo: json!({}),
            signing: Signing::default(),
            document: json!({}),
            refusal: 400,
            redirects: false,
            slash: false,
            method: "client_secret_basic",
            exchanged: 0,
            requests: Vec::new(),
            keys: vec![RSA.clone()],
            codes: BTreeMap::new(),
            count: 0,
        }
    }
}

impl OidcProvider {
    pub const CLIENT: &str = "stepwatch";
    pub const SECRET: &str = "canary of: the client/+";
    pub const SUBJECT: &str = "00u1ab|2";

    /// Replaces the key by one of an elliptic curve.
    pub fn rotate(&mut self) {
        self.count += 1;
        self.keys = vec![Key::elliptic(format!("ec-{}", self.count))];
    }

    fn issuer(&self, request: &Received) -> String {
        let slash = if self.slash { "/" } else { "" };
        format!("{}{slash}", base(request))
    }

    fn document(&self, request: &Received) -> Reply {
        let base = base(request);
        let mut document = json!({
            "issuer": self.issuer(request),
            "authorization_endpoint": format!("{base}/authorize?tenant=1"),
            "token_endpoint": format!("{base}/token"),
            "jwks_uri": format!("{base}/jwks"),
            "userinfo_endpoint": format!("{base}/userinfo"),
            "token_endpoint_auth_methods_supported": [self.method],
            "authorization_response_iss_parameter_supported": true,
        });
        overlay(&mut document, &self.document);
        Reply::json(200, &document)
    }

    /// The person is logged in, so the browser is sent back at once.
    fn authorize(&mut self, request: &Received) -> Reply {
        let of = |name: &str| request.query.get(name).map_or("", String::as_str);
        let scopes: Vec<_> = of("scope").split(' ').collect();
        let good = of("tenant") == "1"
            && of("response_type") == "code"
            && of("client_id") == Self::CLIENT
            && of("redirect_uri").ends_with("/login/oidc/callback")
            && scopes.contains(&"openid")
            && of("code_challenge_method") == "S256"
            && of("code_challenge").len() == 43
            && of("state").len() >= 32
            && of("nonce").len() >= 32;
        if !good {
            return Reply::text(400, "invalid_request");
        }
        self.count += 1;
        let code = format!("code/{}", self.count);
        let issuer = self.issuer(request);
        let parts = [("code", code.as_str()), ("state", of("state")), ("iss", issuer.as_str())];
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parts).finish();
        let to = format!("{}?{query}", of("redirect_uri"));
        let redirect_uri = of("redirect_uri").to_owned();
        let (nonce, challenge) = (of("nonce").to_owned(), of("code_challenge").to_owned());
        self.codes.insert(code, Code { nonce, challenge, redirect_uri });
        Reply { status: 302, headers: vec![("location", to)], body: String::new() }
    }

    fn token(&mut self, request: &Received) -> Reply {
        if self.redirects {
            let to = format!("{}/elsewhere", base(request));
            return Reply { status: 307, headers: vec![("location", to)], body: String::new() };
        }
        let form: BTreeMap<String, String> = form_urlencoded::parse(&request.body).into_owned().collect();
        let of = |name: &str| form.get(name).map_or("", String::as_str);
        if !self.is_client(request, of("client_id"), of("client_secret")) {
            return Self::refuse(401, "invalid_client");
        }
        // A code is used once, whatever comes of it.
        let Some(code) = self.codes.remove(of("code")) else {
            return Self::refuse(self.refusal, "invalid_grant");
        };
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(of("code_verifier").as_bytes()));
        let same = challenge == code.challenge && of("redirect_uri") == code.redirect_uri;
        if !same || of("grant_type") != "authorization_code" {
            return Self::refuse(self.refusal, "invalid_grant");
        }
        self.exchanged += 1;
        let id_token = self.id_token(request, &code.nonce);
        let tokens = json!({"token_type": "Bearer", "access_token": "access-1", "expires_in": LIFETIME, "id_token": id_token});
        Reply::json(200, &tokens)
    }

    fn is_client(&self, request: &Received, id: &str, secret: &str) -> bool {
        if self.method != "client_secret_basic" {
            return id == Self::CLIENT && secret == Self::SECRET;
        }
        let given = request.header("authorization").and_then(|value| value.strip_prefix("Basic "));
        let decoded = given.and_then(|given| STANDARD.decode(given).ok()).unwrap_or_default();
        let decoded = String::from_utf8(decoded).unwrap_or_default();
        let decode = |text: &str| {
            let pair = format!("x={text}");
            form_urlencoded::parse(pair.as_bytes()).next().map(|(_, value)| value.into_owned())
        };
        decoded.split_once(':').is_some_and(|(id, secret)| {
            decode(id).as_deref() == Some(Self::CLIENT) && decode(secret).as_deref() == Some(Self::SECRET)
        })
    }

    fn id_token(&self, request: &Received, nonce: &str) -> String {
        let now = request.time.as_second();
        let mut claims = json!({
            "iss": self.issuer(request),
            "sub": Self::SUBJECT,
            "aud": Self::CLIENT,
            "nonce": nonce,
            "iat": now,
            "exp": now + LIFETIME,
        });
        overlay(&mut claims, &self.claims);
        let Some(newest) = self.keys.last() else { return String::new() };
        let (algorithm, key) = match self.signing {
            Signing::Right => (newest.algorithm, newest.key.clone()),
            Signing::Stranger => (Algorithm::ES256, Key::elliptic(String::new()).key),
            Signing::Secret => (Algorithm::HS256, hmac(Self::SECRET)),
            Signing::PublicKey => {
                (Algorithm::HS256, hmac(&serde_json::to_string(&newest.public()).unwrap_or_default()))
            }
            Signing::Nothing => {
                let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
                return format!("{}.{}.", part(&json!({"alg": "none", "typ": "JWT"})), part(&claims));
            }
        };
        let mut header = Header::new(algorithm);
        header.kid = Some(newest.kid.clone());
        encode(&header, &claims, &key).expect("the key is of the algorithm")
    }

    fn userinfo(&self, request: &Received) -> Reply {
        if request.header("authorization") != Some("Bearer access-1") {
            return Self::refuse(401, "invalid_token");
        }
        let mut info = json!({"sub": Self::SUBJECT});
        overlay(&mut info, &self.userinfo);
        Reply::json(200, &info)
    }
}

impl Service for OidcProvider {
    fn endpoint(request: &Received) -> Option<String> {
        let name = match request.path.as_str() {
            "/.well-known/openid-configuration" => "configuration",
            "/authorize" => "authorize",
            "/token" => "token",
            "/jwks" => "jwks",
            "/userinfo" => "userinfo",
            _ => return None,
        };
        Some(name.to_owned())
    }

    fn serve(&mut self, request: &Received) -> Reply {
        match Self::endpoint(request).as_deref() {
            Some("configuration") => self.document(request),
            Some("authorize") => self.authorize(request),
            Some("token") => self.token(request),
            Some("userinfo") => self.userinfo(request),
            Some("jwks") => {
                // Real sets have keys of kinds that few programs know, and keys for encryption.
                let odd = [
                    json!({"kty": "AKP", "alg": "ML-DSA-44", "kid": "pq", "pub": "AAAA"}),
                    json!({"kty": "RSA", "use": "enc", "kid": "enc", "n": "AQAB", "e": "AQAB"}),
                ];
                let ours = self.keys.iter().map(|key| serde_json::to_value(key.public()).unwrap_or_default());
                let keys: Vec<Value> = odd.into_iter().chain(ours).collect();
                Reply::json(200, &json!({"keys": keys}))
            }
            _ => Reply::text(404, "not found"),
        }
    }

    fn refuse(status: u16, error: &str) -> Reply {
        Reply::json(status, &json!({"error": error}))
    }

    fn received(&mut self) -> &mut Vec<Received> {
        &mut self.requests
    }
}

fn base(request: &Received) -> String {
    format!("http://{}", request.header("host").unwrap_or_default())
}

fn hmac(secret: &str) -> EncodingKey {
    EncodingKey::from_secret(secret.as_bytes()).expect("a secret that is not empty")
}

/// Sets the fields of `over` in `value`, and removes those that are `null`.
fn overlay(value: &mut Value, over: &Value) {
    let (Value::Object(fields), Value::Object(over)) = (value, over) else { return };
    for (key, value) in over {
        if value.is_null() {
            fields.remove(key);
        } else {
            fields.insert(key.clone(), value.clone());
        }
    }
}
