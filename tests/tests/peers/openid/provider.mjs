// A certified OpenID provider with one client, at which everybody may log in by any name. Groups
// are in the userinfo alone. The arguments are the directory with its package, the address to which
// it leads back, the secret of the client, and the groups.

import { createServer } from 'node:http';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [modules, redirect, secret, groups] = process.argv.slice(2);
const library = pathToFileURL(join(modules, 'oidc-provider/lib/index.js'));
const { default: Provider } = await import(library);

// The provider's name has its port, which is known once it listens.
let answer;
const server = createServer((request, response) => answer(request, response));
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{ client_id: 'stepwatch', client_secret: secret, redirect_uris: [redirect] }],
    claims: { openid: ['sub'], profile: ['preferred_username', 'groups'] },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, preferred_username: id, groups: groups.split(',') }),
    }),
    pkce: { required: () => true },
    cookies: { keys: ['of this test'] },
  });
  answer = provider.callback();
  console.error(`listening at ${issuer}`);
});
